"""Where answers go: text through one rich console, JSON as it is, progress on stderr when a person watches."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TextIO, cast

from rich.console import Console

from lmr.replay_tool.standard_output import PlainConsole

DEFAULT_COLUMNS = 120
Progress = Callable[[int], None]
"""Told how far some long work is."""


def silent(_done: int) -> None:
    """Progress that nobody watches."""


def console() -> Console:
    """A console for prose and tables; plain text of a fixed width when the output is a file or a pipe."""
    watched = sys.stdout.isatty()
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else None if watched else DEFAULT_COLUMNS
    file = sys.stdout if watched else cast("IO[str]", _Trimmed(sys.stdout))
    return PlainConsole(file=file, width=width, highlight=False, markup=False, emoji=False)


class _Trimmed:
    """Standard output without the blanks that fill table cells: files and pipes get clean lines."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        self._out.write(re.sub(r" +(?=\n)", "", text))
        return len(text)

    def flush(self) -> None:
        self._out.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._out, name)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Progress]:
    """Yields a function that is told how far the work is; a bar on stderr when that is a terminal, else nothing."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
