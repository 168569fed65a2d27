"""Where a verb may write: never over what it reads, and never over a database."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lmr.replay_tool.errors import Usage
from lmr.replay_tool.source import SQLITE_MAGIC

BESIDE = ("", "-wal", "-shm", "-journal")
"""What belongs to an SQLite file, by what its name ends with."""


def output_path(output: str, sources: Iterable[str]) -> Path:
    """The file to write.

    Args:
        output: as the user typed it; `-` is standard output.
        sources: what is read: paths or SQLAlchemy URLs.

    Raises:
        Usage: it is one of the sources, under whatever name, or a database.
    """
    path = Path(output)
    if not path.is_file():
        return path
    for source in sources:
        file = source.partition(":///")[2] if source.startswith("sqlite") and ":///" in source else source
        for own in (Path(file + end) for end in BESIDE):
            if own.is_file() and path.samefile(own):
                raise Usage(f"{output}: is what {source} is read from, and would be replaced; name another file")
    try:
        with path.open("rb") as existing:
            is_database = existing.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        is_database = False
    if is_database:
        raise Usage(f"{output}: is an SQLite database, and would be replaced; name another file")
    return path
