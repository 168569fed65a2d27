"""One message from or to an agent or a trainer of this node. The vault has one thread, so neither ever waits."""

from __future__ import annotations

import socket
from typing import Any

import structlog

from lmr.integrations.torchrun import local_socket

_log = structlog.get_logger(__name__)


def read(sock: socket.socket) -> dict[str, Any] | None:
    """The next message; None when the other side is gone or cannot be understood."""
    try:
        received = local_socket.receive(sock)
    except (OSError, local_socket.LocalSocketError) as error:
        _log.warning("vault.unreadable", error=str(error))
        return None
    return None if received is None else received[0]


def tell(sock: socket.socket | None, message: dict[str, Any], fds: list[int] | None = None) -> bool:
    """Whether it was sent: a reader that does not read loses messages, and the vault goes on."""
    if sock is None:
        return False
    try:
        local_socket.send(sock, message, fds, wait=False)
    except OSError as error:
        if not isinstance(error, ConnectionError):
            _log.warning("vault.untold", kind=message.get("kind"), error=str(error))
        return False
    return True
