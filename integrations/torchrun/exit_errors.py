"""What ended a trainer: a kind the decision rules know, and a fingerprint equal on every rank that failed alike.

A peer's death reaches the other ranks as an error of their own collective. Such an error is secondary: it must never be
taken for the cause. The patterns below are what gloo, NCCL and the c10d store say in torch 2.13.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import traceback
from types import TracebackType
from typing import Any

from lmr.integrations.torchrun.worker_page import WorkerPage

FINGERPRINT_FRAMES = 6
_MESSAGE_MAX = 300

_COLLECTIVE_TYPES = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError", "DistQueueEmptyError"})
_COLLECTIVE_MESSAGE = re.compile(
    r"connection closed by peer|connection reset by peer|connection refused|broken pipe|socket timeout"
    r"|connection was likely closed|failed to recv|recvvalue failed|sendbytes failed|recv\(\) (?:timed out|failed)"
    r"|(?:timed out|timeout) (?:after )?waiting .{0,60}(?:recv|send|operation)|wait timeout"
    r"|\[[^\]]*gloo[^\]]*\]|gloo[/ ].{0,120}(?:closed|timed out|timeout|error|failed)|monitoredbarrier"
    r"|ncclremoteerror|ncclsystemerror|nccl (?:communicator was aborted|error)|watchdog caught collective"
    r"|remote process (?:has )?exited|collective operation timeout|heartbeat monitor",
    re.IGNORECASE,
)
_MEMORY_MESSAGE = re.compile(
    r"out of memory|defaultcpuallocator: (?:can't|not enough)|cannot allocate memory|cublas_status_alloc_failed",
    re.IGNORECASE,
)
_NONFINITE_MESSAGE = re.compile(
    r"(?:loss|grad\w*|norm|weights?|value|output)s?\b.{0,60}\b(?:nan|inf|infinite|non-?finite|not finite)\b"
    r"|\b(?:nan|inf|non-?finite)\b.{0,60}\b(?:loss|grad\w*|norm|weights?|output)"
    r"|returned nan values|non-?finite",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+|(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?|\[[0-9a-fA-F:]+\](?::\d+)?")
_DIGITS = re.compile(r"\d+")


def describe(error: BaseException) -> dict[str, Any]:
    """Kind, type and fingerprint of an exception.

    Returns:
        `{"kind", "type", "fingerprint"}` as in a `worker_exited` fact.
    """
    return {"kind": kind_of(error), "type": type(error).__name__, "fingerprint": fingerprint(error)}


def kind_of(error: BaseException) -> str:
    """`collective`, `out_of_memory`, `nonfinite` or `exception`, judged by the error and what it was raised from."""
    for link in _chain(error):
        name, message = type(link).__name__, str(link)
        if isinstance(link, MemoryError) or name == "OutOfMemoryError" or _MEMORY_MESSAGE.search(message):
            return "out_of_memory"
        if name in _COLLECTIVE_TYPES:
            return "collective"
        if _COLLECTIVE_MESSAGE.search(message) and _of_torch(link):
            return "collective"
        if isinstance(link, FloatingPointError) or _NONFINITE_MESSAGE.search(message):
            return "nonfinite"
    return "exception"


def fingerprint(error: BaseException) -> str:
    """The same for the same error on every rank, every machine and every step.

    Made of the type, the innermost frames as file name and function (no paths, no line numbers of other installs) and
    the message with numbers and addresses taken out.
    """
    trace = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in trace if frame.filename != "<frozen runpy>"][-FINGERPRINT_FRAMES:]
    where = [f"{os.path.basename(frame.filename)}:{frame.name}" for frame in frames]  # noqa: PTH119
    message = _DIGITS.sub("#", _ADDRESS.sub("@", str(error)))[:_MESSAGE_MAX]
    body = "\n".join([type(error).__qualname__, *where, message])
    return hashlib.sha256(body.encode(errors="replace")).hexdigest()[:32]


def install(page: WorkerPage) -> None:
    """Have uncaught errors of this process described in `page`; whatever hook was there still runs."""
    previous, own_pid = sys.excepthook, os.getpid()

    def record(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # A child that user code forks inherits the hook but is not the trainer.
        if os.getpid() == own_pid and not isinstance(error, KeyboardInterrupt):
            try:
                page.write_error(describe(error))
            except Exception as fault:  # noqa: BLE001  the user's traceback matters more
                print(f"lmr: the error could not be described: {fault!r}", file=sys.stderr)
        previous(kind, error, trace)

    sys.excepthook = record


def _chain(error: BaseException) -> list[BaseException]:
    """The error, then what it was explicitly raised from."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain and len(chain) < 8:
        chain.append(link)
        link = link.__cause__
    return chain


def _of_torch(error: BaseException) -> bool:
    """Whether an error speaks of torch's communication; a socket error may be the user's own HTTP client's."""
    if isinstance(error, OSError):
        return any("torch/distributed" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
    return isinstance(error, RuntimeError)
