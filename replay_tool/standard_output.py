"""Standard output as it comes: an encoding without our characters, a reader that goes away, a disk that is full."""

from __future__ import annotations

import io
import os
import sys

from rich.console import Console

READER_WENT = 128 + 13
"""What a shell reports of any command whose reader went away: SIGPIPE."""


def replace_unknown_characters() -> None:
    """From now on a character that the output's encoding does not have is written as `?`. Standard error escapes it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def is_unicode() -> bool:
    """Whether standard output can take any character."""
    return (sys.stdout.encoding or "ascii").lower().startswith("utf")


def give_up_unwritten() -> None:
    """Drop what cannot be written, or the interpreter would try again at its end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


class PlainConsole(Console):
    """A console that leaves a closed pipe to whoever runs the command, instead of exiting with 1."""

    def on_broken_pipe(self) -> None:
        """Called by rich inside its handler of the error."""
        raise BrokenPipeError
