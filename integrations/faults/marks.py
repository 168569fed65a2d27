"""Marks on disk: which fault has struck, once for each time it may.

Steps are repeated after a recovery; a fault must not strike again in each repetition. A trainer makes the mark before
it strikes. Where the runner is to act, the trainer waits beside its mark until the runner has made one of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_LOOK_S = 0.01


@dataclass(frozen=True)
class Strike:
    """One fault that struck: which, where, and when by the wall clock."""

    fault: int
    effect: str
    rank: int | None
    step: int | None
    node: str
    pid: int
    at_ms: int
    detail: str = ""


def node_of(environ: Mapping[str, str]) -> str:
    """What the machine is called in campaigns and marks: its name in the run, or the host's."""
    return environ.get("LM_RESILIENCY_NODE_ID") or socket.gethostname()


class Marks:
    """The marks of one run.

    Args:
        folder: shared by all that take part in it; made here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def claim(self, strike: Strike, times: int) -> Path | None:
        """Mark a strike, unless the fault has struck `times` times already."""
        body = json.dumps(asdict(strike)).encode()
        draft = self.folder / f".draft-{strike.fault}-{strike.pid}"
        draft.write_bytes(body)
        try:
            for number in range(times):
                path = self.folder / f"fault-{strike.fault}-{number}.json"
                with contextlib.suppress(FileExistsError):
                    os.link(draft, path)  # whole at once, and only one can be first
                    return path
            return None
        finally:
            draft.unlink()

    def strikes(self) -> dict[Path, Strike]:
        """All strikes so far, in the order of their times."""
        found = {path: Strike(**_read(path)) for path in self.folder.glob("fault-*.json")}
        return dict(sorted(found.items(), key=lambda item: item[1].at_ms))

    @staticmethod
    def done(path: Path, said: str) -> None:
        """The runner has done its part of a strike."""
        answer = path.with_suffix(".draft")
        answer.write_text(said)
        answer.replace(path.with_suffix(".done"))

    @staticmethod
    def wait_done(path: Path, timeout_s: float) -> bool:
        """Wait for the runner's part."""
        until = time.monotonic() + timeout_s
        while not path.with_suffix(".done").exists():
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_S)
        return True


def _read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found
