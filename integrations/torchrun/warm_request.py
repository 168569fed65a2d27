"""Asking for a warm start: the supervisor's side of `warm`.

Every supervisor runs this before its trainer can start, several at once on a busy machine: it imports as little as can
be.
"""

from __future__ import annotations

import os
import sys

from lmr.integrations.torchrun import local_socket

TYPE_CHECKING = False  # importing typing is a tenth of a supervisor's start
if TYPE_CHECKING:
    import socket

SWITCH = "LM_RESILIENCY_WARM_START"
"""`0` in the agent's environment: every trainer starts cold."""
SOCKET = "LMR_WARM_SOCKET"


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
        sock = local_socket.connect(name)
        job = {
            "argv": sys.orig_argv,
            "environ": dict(os.environ),
            "folder": os.getcwd(),  # noqa: PTH109 - pathlib is 10 ms of a start
            "path": sys.path,
            "supervisor": os.getpid(),
        }
        local_socket.send(sock, job, [0, 1, 2, page_fd])
        answer = local_socket.receive(sock)
    except (OSError, local_socket.LocalSocketError):
        return None
    return None if answer is None else (sock, int(answer[0]["pid"]))
