"""Which reader a file needs, and running it."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from lmr.replay_tool.errors import Unreadable, Usage
from lmr.replay_tool.importers.sighting import Gleaned, Job

KINDS = {
    "torchelastic": "torchelastic",
    "agent-log": "agent_log",
    "flight-recorder": "flight_recorder",
    "nvrx": "nvrx",
    "sacct": "sacct",
    "kernel": "kernel",
    "collective": "collective",
}
"""Artefact kind to reader module, in the order in which they are asked."""
_LOOK_BYTES = 1 << 16


def read_artefacts(paths: Iterable[Path], kind: str, job: Job) -> list[Gleaned]:
    """What all files tell; several records of one job are compared with each other where that says more.

    Args:
        paths: the files.
        kind: one of `KINDS`, or `auto`.
        job: what is known about the job.

    Raises:
        Unreadable: a file that no reader recognizes, or that is broken.
    """
    if kind != "auto" and kind not in KINDS:
        raise Usage(f"--from {kind}: say auto or one of {', '.join(KINDS)}")
    by_reader: dict[str, list[Path]] = {}
    for path in paths:
        by_reader.setdefault(kind if kind != "auto" else _kind_of(path), []).append(path)
    found: list[Gleaned] = []
    for name, files in by_reader.items():
        reader = _reader(name)
        together = getattr(reader, "together", None)
        try:
            found += [together(files, job)] if together else [reader.read(path, job) for path in files]
        except (UnicodeDecodeError, ValueError, KeyError, IndexError) as error:
            raise Unreadable(str(files[0]), f"not what a {name} artefact looks like: {error}") from error
        except OSError as error:
            raise Unreadable(str(error.filename), (error.strerror or str(error)).lower()) from error
    return found


def _reader(name: str) -> ModuleType:
    return importlib.import_module(f"lmr.replay_tool.importers.{KINDS[name]}")


def _kind_of(path: Path) -> str:
    head = _ends(path)
    for name in KINDS:
        if _reader(name).recognizes(head):
            return name
    raise Unreadable(str(path), f"no artefact this tool knows ({', '.join(KINDS)})")


def _ends(path: Path) -> bytes:
    """The file's beginning and end: what tells its kind, even when it is a long log."""
    try:
        with path.open("rb") as file:
            head = file.read(_LOOK_BYTES)
            size = file.seek(0, 2)
            if size <= _LOOK_BYTES:
                return head
            # A long log is read through once: its telling line may stand anywhere.
            file.seek(0)
            return b"".join(line for line in file if any(mark in line for mark in _MARKS))[:_LOOK_BYTES] or head
    except OSError as error:
        raise Unreadable(str(path), (error.strerror or str(error)).lower()) from error


_MARKS = (
    b"(first observed failure)", b"NVRM: Xid", b"[Hardware Error]", b"EDAC MC", b"gloo/transport", b"NCCL error in",
    b"Watchdog caught collective operation timeout", b"ncclRemoteError", b'"pg_config"', b'"pg_status"', b'"entries"',
    b"entries", b"pg_config", b"JobID", b'"cycle_number"',
)  # fmt: skip
