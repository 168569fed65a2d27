"""Asking for a warm start, and hearing how it ended: the supervisor's side of `warm`.

Every supervisor runs this before its trainer can start, several at once on a busy machine: it imports as little as can
be.
"""

from __future__ import annotations

import os
import sys
import time

from lmr.integrations.torchrun import local_message
from lmr.integrations.torchrun.process_tree import kill_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any
else:
    import _signal as signal  # see `local_message`
    import _socket as socket

SWITCH = "LM_RESILIENCY_WARM_START"
"""`0` in the agent's environment: every trainer starts cold."""
SOCKET = "LMR_WARM_SOCKET"
PROCESS = "LMR_WARM_PID"
LOADING_S = 15.0
"""How long a restart waits for a warm process that is still loading: a cold start would load the same, once a rank."""
LOOK_S = 0.05
ANSWER_S = 5.0
"""How long a warm process that is there may take to answer: it has a fork ready or makes one at once."""


def understood(argv: list[str]) -> bool:
    """Whether a warm start can do what a command line says: `python [-u] SCRIPT ...` or `python [-u] -m MODULE ...`."""
    if getattr(sys.flags, "safe_path", False):
        return False  # the script's folder is not to be searched
    rest = argv[2:] if argv[1:2] == ["-u"] else argv[1:]
    if rest[:1] == ["-m"]:
        return len(rest) > 1
    return bool(rest) and not rest[0].startswith("-") and _is_source(rest[0])


def _is_source(path: str) -> bool:
    """Whether a file is Python text: compiled ones and archives (`zipapp`) have zeros where they begin or end."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            begins = file.read(16)
            file.seek(-len(begins), os.SEEK_END)
            return b"\0" not in begins + file.read()
    except OSError:
        return False


def interpreter() -> list[Any]:
    """What runs this process; a wrapper, or `PYTHON_EXEC`, may have chosen another for the workers."""
    return [sys.prefix, sys.version, *sys.flags]


def ask(page_fd: int, blocked: Any) -> WarmTrainer | None:
    """From the supervisor: a warm trainer; None when it is to start cold.

    Args:
        page_fd: memory the trainer writes its last words to.
        blocked: signals that were held back before the supervisor began.
    """
    name = os.environ.get(SOCKET)
    if not name or not understood(sys.orig_argv):
        return None
    sock = None
    try:
        sock = _connect(name)
        job = {
            "interpreter": interpreter(),
            "argv": sys.orig_argv,
            "environ": dict(os.environ),
            "folder": os.getcwd(),  # noqa: PTH109 - pathlib is 10 ms of a start
            "path": sys.path,
            "supervisor": os.getpid(),
            "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN],
            "blocked": [*blocked],
        }
        local_message.send(sock, job, [0, 1, 2, page_fd])
        answer = _answer(sock)
    except (OSError, TypeError, local_message.LocalSocketError):  # TypeError: an entry of `sys.path` that is no text
        answer = None
    if sock is not None and answer is not None:
        return WarmTrainer(sock, int(answer[0]["pid"]))
    if sock is not None:
        sock.close()
    return None


def _answer(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """What the warm process says, None when nothing. After that it can no longer start this trainer."""
    sock.settimeout(ANSWER_S)
    try:
        return local_message.receive(sock)
    except TimeoutError:
        sock.shutdown(socket.SHUT_RD)  # an answer has come by now, or sending one fails and no trainer is started
        answer = local_message.receive(sock)
        if answer is None:
            print(f"lmr: the warm process does not answer; rank {os.environ.get('RANK')} starts cold", file=sys.stderr)
        return answer
    finally:
        sock.settimeout(None)


class WarmTrainer:
    """A trainer that the warm process forked, and is the one to reap.

    Args:
        sock: where the warm process tells how it ended. When it dies itself, it takes its forks along.
        pid: the trainer.
    """

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.pid = pid
        self._sock = sock
        self._silent_at: float | None = None
        """When its end should have been told."""
        try:
            self._end: int | None = os.pidfd_open(pid)
        except OSError:  # it is gone already, or this kernel has none
            self._end = None

    def watched(self) -> list[Any]:
        """What `select` waits for."""
        return [self._sock] if self._end is None else [self._sock, self._end]

    def most_s(self, timeout_s: float | None) -> float | None:
        """How long to wait for it at most."""
        if self._silent_at is None:
            return timeout_s
        left_s = max(0.0, self._silent_at - time.monotonic())
        return left_s if timeout_s is None else min(left_s, timeout_s)

    def status(self, readable: list[Any]) -> int | None:
        """How it ended, as `waitpid` says it; None while it has not."""
        if self._sock in readable:
            try:
                received = local_message.receive(self._sock)
            except (OSError, local_message.LocalSocketError):
                received = None
            return self._lost() if received is None else int(received[0]["status"])
        if self._end is not None and self._end in readable:
            os.close(self._end)
            self._end, self._silent_at = None, time.monotonic() + ANSWER_S
        if self._silent_at is not None and time.monotonic() > self._silent_at:
            rank = os.environ.get("RANK")
            print(f"lmr: the warm process does not say how rank {rank} ended; it counts as killed", file=sys.stderr)
            self._sock.close()
            return self._lost()
        return None

    def _lost(self) -> int:
        """Nobody has seen to what it leaves behind."""
        kill_session(self.pid)
        return int(signal.SIGKILL)


def _connect(name: str) -> socket.socket:
    """The warm process; in a restart also one that has only just been started, such as that of a repaired machine.

    Raises:
        OSError: there is none, or it takes too long.
    """
    first = os.environ.get("LM_RESILIENCY_GENERATION") == "0"
    until = time.monotonic() + (0 if first else LOADING_S)
    while True:
        try:
            connected: socket.socket = local_message.connect(name)
            return connected
        except ConnectionRefusedError:
            # A signal that waits for this supervisor is more urgent; a warm process that is gone will not answer.
            if time.monotonic() >= until or signal.sigpending() or not _is_alive(os.environ.get(PROCESS, "")):
                raise
        time.sleep(LOOK_S)


def _is_alive(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False
