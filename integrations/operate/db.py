"""Upgrade, check or show the schema of an event log; move its old records to a bundle."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lmr.engine.errors import StateUnreadable
from lmr.integrations.operate.runs import RunNotChosen, chosen_run
from lmr.store import StoreError, open_log
from lmr.store.archived import archive_through
from lmr.store.upgrading import check, current, upgrade


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr db`."""
    parser.add_argument("what", choices=("upgrade", "current", "check", "archive"))
    parser.add_argument("log", metavar="LOG", help="SQLAlchemy URL or SQLite path")
    parser.add_argument("--run", metavar="ID", dest="run_id", help="archive: the run, when the log holds several")
    parser.add_argument("--run-id", dest="run_id", help=argparse.SUPPRESS)
    parser.add_argument("--through", metavar="SEQ", type=int, help="archive: the last record to move")
    parser.add_argument("-o", "--output", metavar="FILE", help="archive: the bundle to write; .gz compresses it")


def run(args: argparse.Namespace) -> int:
    """`upgrade` migrates, `current` prints the revision, `check` names each fault and exits 1 when there is one.

    `archive` folds the records up to `--through`, seals them with the state, and moves them to a bundle.
    """
    try:
        if args.what == "upgrade":
            before, after = upgrade(args.log)
            print(f"{after.url}: revision {before.revision or 'none'} -> {after.revision}")
        elif args.what == "current":
            found = current(args.log)
            print(f"{found.url}: revision {found.revision or 'none'} ({found.standing}); ours is {found.head}")
        elif args.what == "archive":
            return _archive(args)
        elif faults := check(args.log):
            print("\n".join(faults))
            return 1
        else:
            print("the schema is whole and current")
    except (StoreError, StateUnreadable, RunNotChosen) as error:
        print(f"lmr db: {error}", file=sys.stderr)
        return 2
    return 0


def _archive(args: argparse.Namespace) -> int:
    if args.through is None or args.output is None:
        print("lmr db: archive needs --through SEQ and -o FILE", file=sys.stderr)
        return 2
    if Path(args.output).exists():
        print(f"lmr db: {args.output}: is there already; an archive replaces nothing", file=sys.stderr)
        return 2
    with open_log(args.log, create=False) as log:
        run_id = chosen_run(log, args.run_id)
        seal = archive_through(log, run_id, args.through, Path(args.output))
    print(f"run {run_id}: records up to {seal.through_seq} are in {args.output}; root {seal.root_hash}")
    return 0
