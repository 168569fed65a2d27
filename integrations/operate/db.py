"""Upgrade, check or show the schema of an event log."""

from __future__ import annotations

import argparse
import sys

from lmr.store import StoreError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr db`."""
    parser.add_argument("what", choices=("upgrade", "current", "check"))
    parser.add_argument("log", metavar="LOG", help="SQLAlchemy URL or SQLite path")


def run(args: argparse.Namespace) -> int:
    """`upgrade` migrates, `current` prints the revision, `check` exits 1 when the log needs another version."""
    from lmr.store.migrate import status, upgrade
    from lmr.store.opening import open_database

    try:
        database = open_database(args.log, create=args.what == "upgrade", read_only=args.what != "upgrade")
        try:
            if args.what == "upgrade":
                upgrade(database)
            with database.read() as connection:
                found = status(database, connection)
        finally:
            database.close()
    except StoreError as error:
        print(f"lmr db: {error}", file=sys.stderr)
        return 2
    print(f"{found.url}: revision {found.revision or 'none'} ({found.standing}); this software writes {found.head}")
    return 0 if args.what != "check" or found.standing == "current" else 1
