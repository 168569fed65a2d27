"""Asking for a warm start: the supervisor's side of `warm`.

Every supervisor runs this before its trainer can start, several at once on a busy machine: it imports as little as can
be.
"""

from __future__ import annotations

import os
import sys
import time

from lmr.integrations.torchrun import local_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
else:
    import _signal as signal  # see `local_message`

SWITCH = "LM_RESILIENCY_WARM_START"
"""`0` in the agent's environment: every trainer starts cold."""
SOCKET = "LMR_WARM_SOCKET"
PROCESS = "LMR_WARM_PID"
LOADING_S = 15.0
"""How long a restart waits for a warm process that is still loading: a cold start would load the same, once a rank."""
LOOK_S = 0.05


def understood(argv: list[str]) -> bool:
    """Whether a warm start can do what a command line says: `python [-u] SCRIPT ...` or `python [-u] -m MODULE ...`."""
    rest = argv[2:] if argv[1:2] == ["-u"] else argv[1:]
    if rest[:1] == ["-m"]:
        return len(rest) > 1
    return bool(rest) and not rest[0].startswith("-") and os.path.isfile(rest[0])  # noqa: PTH113


def ask(page_fd: int) -> tuple[socket.socket, int] | None:
    """From the supervisor: a warm trainer. Returns its socket and pid; None when it is to start cold.

    Args:
        page_fd: memory the trainer writes its last words to.
    """
    name = os.environ.get(SOCKET)
    if not name or not understood(sys.orig_argv):
        return None
    try:
        sock = _connect(name)
        job = {
            "argv": sys.orig_argv,
            "environ": dict(os.environ),
            "folder": os.getcwd(),  # noqa: PTH109 - pathlib is 10 ms of a start
            "path": sys.path,
            "supervisor": os.getpid(),
        }
        local_message.send(sock, job, [0, 1, 2, page_fd])
        answer = local_message.receive(sock)
    except (OSError, local_message.LocalSocketError):
        return None
    return None if answer is None else (sock, int(answer[0]["pid"]))


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
