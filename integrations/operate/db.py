"""Upgrade, check or show the schema of an event log."""

from __future__ import annotations

import argparse
import sys

from lmr.store import StoreError
from lmr.store.upgrading import check, current, upgrade


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr db`."""
    parser.add_argument("what", choices=("upgrade", "current", "check"))
    parser.add_argument("log", metavar="LOG", help="SQLAlchemy URL or SQLite path")


def run(args: argparse.Namespace) -> int:
    """`upgrade` migrates, `current` prints the revision, `check` names each fault and exits 1 when there is one."""
    try:
        if args.what == "upgrade":
            before, after = upgrade(args.log)
            print(f"{after.url}: revision {before.revision or 'none'} -> {after.revision}")
        elif args.what == "current":
            found = current(args.log)
            print(f"{found.url}: revision {found.revision or 'none'} ({found.standing}); ours is {found.head}")
        elif faults := check(args.log):
            print("\n".join(faults))
            return 1
        else:
            print("the schema is whole and current")
    except StoreError as error:
        print(f"lmr db: {error}", file=sys.stderr)
        return 2
    return 0
