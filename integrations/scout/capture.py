"""Evidence of one rank, saved before anything is killed: stacks, the kernel's view, the page, the flight record.

Each artefact is one JSON file, owner-only, named by what it is and the start of its SHA-256; facts cite name and
digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmr.integrations.scout.evidence import STACKS_SIGNAL
from lmr.integrations.scout.page import PulseReader
from lmr.integrations.torchrun import local_socket

FILES_KEPT = 128
STACKS_WAIT_S = 1.0
FLIGHT_RECORD_WAIT_S = 1.5
_STACKS_MOST_BYTES = 256 * 1024
_THREADS_MOST = 64


@dataclass(frozen=True)
class Target:
    """A trainer that can be looked into."""

    rank: int
    pid: int
    generation: int
    stacks_fd: int
    ask: str
    reader: PulseReader


def capture(target: Target, folder: Path) -> list[dict[str, str]]:
    """Save what can be had of a rank; takes at most a few seconds and never raises for what cannot.

    Returns:
        Name and digest of each artefact.
    """
    kernel = _kernel_view(target.pid)
    record, why = (None, "the process is stopped") if kernel["state"] == "T" else _flight_record(target.ask)
    document: dict[str, Any] = {
        "rank": target.rank,
        "generation": target.generation,
        "pid": target.pid,
        "kernel": kernel,
        "page": asdict(target.reader.read()),
        "stacks": _stacks(target, stopped=kernel["state"] == "T"),
        "flight_record": "saved beside" if record is not None else f"not available: {why}",
    }
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    saved = [_save(folder, target, "stacks", json.dumps(document, indent=1, sort_keys=True).encode())]
    if record is not None:
        saved.append(_save(folder, target, "flight-record", record))
    _forget(folder)
    return saved


def process_state(pid: int) -> str:
    """The process's state letter; X when it is gone."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def _kernel_view(pid: int) -> dict[str, Any]:
    threads = {}
    base = Path("/proc", str(pid), "task")
    try:
        for entry in sorted(os.listdir(base), key=int)[:_THREADS_MOST]:
            threads[entry] = {name: _line(base / entry / name) for name in ("comm", "wchan", "syscall")}
            threads[entry]["state"] = _line(base / entry / "stat").rpartition(")")[2][:2].strip()
    except (OSError, ValueError):
        threads = {}
    return {"state": process_state(pid), "threads": threads}


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()[:400]
    except OSError as error:
        return f"not readable: {error.strerror}"


def _stacks(target: Target, *, stopped: bool) -> str:
    """What faulthandler writes when signalled; it does so for a blocked process, not for a stopped one."""
    path = Path("/proc", str(target.pid), "fd", str(target.stacks_fd))
    try:
        before = path.stat().st_size
        if stopped:
            return "not available: the process is stopped"
        os.kill(target.pid, STACKS_SIGNAL)
        until, size = time.monotonic() + STACKS_WAIT_S, before
        while time.monotonic() < until:
            time.sleep(0.02)
            grown = path.stat().st_size
            if grown == size > before:
                break
            size = grown
        with path.open("rb") as file:
            file.seek(before)
            written = file.read(_STACKS_MOST_BYTES).decode(errors="replace")
        return written or "not available: the process does not handle signals"
    except OSError as error:
        return f"not available: {error.strerror}"


def _flight_record(ask: str) -> tuple[bytes | None, str]:
    try:
        with local_socket.connect(ask, FLIGHT_RECORD_WAIT_S) as trainer:
            trainer.settimeout(FLIGHT_RECORD_WAIT_S)
            received = local_socket.receive(trainer)
        if received is None:
            return None, "no answer"
        body, why = received[0].get("record"), str(received[0].get("why"))
        return (None, why) if body is None else (base64.b64decode(body), "")
    except (OSError, ValueError, local_socket.LocalSocketError) as error:
        return None, f"no Python code can run in the process ({error})"


def _save(folder: Path, target: Target, kind: str, body: bytes) -> dict[str, str]:
    digest = hashlib.sha256(body).hexdigest()
    name = f"rank{target.rank}-generation{target.generation}-{kind}-{digest[:12]}.json"
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
    return {"name": name, "digest": digest}


def _forget(folder: Path) -> None:
    """Only the newest files are kept."""
    files = sorted(folder.glob("rank*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in files[: max(0, len(files) - FILES_KEPT)]:
        path.unlink(missing_ok=True)
