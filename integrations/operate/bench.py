"""Measure recovery and its parts, as ratios side by side in one run. Never part of a test."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence

from rich.table import Column, Table

from lmr.replay_tool.standard_output import PlainConsole

PARTS = {
    "recovery": "lmr.integrations.operate.recovery_bench",
    "engine": "lmr.integrations.operate.engine_bench",
    "gemini": "lmr.integrations.gemini.bench",
    "link": "lmr.integrations.operate.link_bench",
    "scout": "lmr.integrations.scout.bench",
    "store": "lmr.store.bench",
    "replay": "lmr.replay_tool.bench",
}

FILE_COLUMNS = 240
"""How wide a table may be that goes to a file: no number in it is cut off."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr bench`."""
    parser.add_argument("--quick", action="store_true", help="few repetitions and small sizes")
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="these parts only")
    parser.add_argument("--postgres", metavar="URL", help="measure the store in this empty schema too")
    parser.add_argument("--repetitions", type=int, metavar="N", help="of each failure in the part `recovery`")
    parser.add_argument(
        "--predecessor",
        action="store_true",
        help="in the part `recovery` also lm-resiliency 0.2.0, installed into an environment of its own",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a row")


def run(args: argparse.Namespace) -> int:
    """Run the parts in turn and print their rows."""
    for part in args.only or PARTS:
        more = {}
        if part == "store":
            more = {"postgres_url": args.postgres}
        elif part == "recovery":
            more = {"repetitions": args.repetitions, "predecessor": args.predecessor}
        rows = importlib.import_module(PARTS[part]).run(quick=args.quick, **more)
        if args.json:
            for row in rows:
                print(json.dumps({"part": part, **row}), flush=True)
        else:
            for table in tables(part, rows):
                PlainConsole(width=None if sys.stdout.isatty() else FILE_COLUMNS, soft_wrap=True).print(table)
        sys.stdout.flush()
    return 0


def tables(part: str, rows: Sequence[dict[str, object]]) -> list[Table]:
    """One table for each set of columns."""
    found: dict[tuple[str, ...], Table] = {}
    for row in rows:
        columns = tuple(row)
        if columns not in found:
            heads = (Column(name, overflow="fold") for name in columns)
            found[columns] = Table(*heads, title=part, title_justify="left", box=None)
        found[columns].add_row(*("-" if value is None else str(value) for value in row.values()))
    return list(found.values())
