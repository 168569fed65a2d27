"""Where answers go: text through one rich console, JSON as it is, progress on stderr when a person watches."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

DEFAULT_COLUMNS = 120


def console() -> Console:
    """A console for prose and tables; plain text of a fixed width when the output is a file or a pipe."""
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() else None if sys.stdout.isatty() else DEFAULT_COLUMNS
    return Console(width=width, highlight=False, markup=False, emoji=False)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how far the work is; a bar on stderr when that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
