"""What the words of a dying worker say about the kind of its error."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from lmr.engine.events import ExitError

Kind = Literal["signal", "exception", "out_of_memory", "collective", "nonfinite", "unknown"]
_COLLECTIVE = (
    "Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited",
    "NCCL error", "ncclRemoteError", "ncclSystemError", "ncclInternalError", "NCCL communicator was aborted",
    "Watchdog caught collective operation timeout", "gloo/transport", "DistBackendError", "DistNetworkError",
    "Socket Timeout", "Timed out waiting", "collective operation timeout",
)  # fmt: skip
_MEMORY = ("out of memory", "OutOfMemoryError", "oom-kill", "MemoryError")
_NOT_FINITE = ("is not finite", "nan loss", "loss is nan", "found inf", "non-finite", "NaN or Inf")
_MARKS: dict[Kind, tuple[str, ...]] = {"out_of_memory": _MEMORY, "collective": _COLLECTIVE, "nonfinite": _NOT_FINITE}
_VOLATILE = re.compile(r"0x[0-9a-f]+|\d+|/[^\s'\"]+")
_TYPE = re.compile(r"^(?:[\w.]+\.)?([A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Warning))\b")


def error_of(text: str, signal: int | None) -> ExitError | None:
    """The error that `text` (a message or a traceback's last line) and a signal tell; None when nothing is known."""
    last = _telling_line(text)
    kind = _kind(text, signal)
    if not last and signal is None:
        return None
    match = _TYPE.match(last)
    name = match[1] if match else (f"signal {signal}" if signal is not None else None)
    return ExitError(kind=kind, type=name, fingerprint=_fingerprint(kind, last, signal))


def _kind(text: str, signal: int | None) -> Kind:
    lowered = text.lower()
    for kind, marks in _MARKS.items():
        if any(mark.lower() in lowered for mark in marks):
            return kind
    if signal is not None:
        return "signal"
    return "exception" if _TYPE.match(_telling_line(text)) else "unknown"


def _telling_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    typed = [line for line in lines if _TYPE.match(line)]
    return typed[-1] if typed else lines[-1] if lines else ""


def _fingerprint(kind: str, line: str, signal: int | None) -> str:
    """Equal for equal errors on different ranks: numbers, addresses and paths do not count."""
    words = _VOLATILE.sub("#", line) or f"signal {signal}"
    return hashlib.sha256(f"{kind}\0{words}".encode()).hexdigest()[:16]
