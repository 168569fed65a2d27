"""The asyncio side of the node's message sockets (`local_socket`)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from lmr.integrations.torchrun import local_socket
from lmr.integrations.torchrun.local_socket import LocalSocketError


class Peer:
    """One connected process, on the running loop.

    Args:
        sock: the connection; owned from here on.
        on_message: called with each message.
        on_close: called once when the peer is gone.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_message: Callable[[Peer, dict[str, Any]], None],
        on_close: Callable[[Peer], None],
    ) -> None:
        self._sock = sock
        self._on_message = on_message
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.about: dict[str, Any] = {}
        """What the peer said of itself; for the owner."""
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            received = local_socket.receive(self._sock)
        except BlockingIOError:
            return
        except (OSError, LocalSocketError):
            received = None
        if received is None:
            self.close()
        else:
            self._on_message(self, received[0])

    def send(self, kind: str, **values: Any) -> bool:
        """Send one message; false when the peer is gone or does not read."""
        try:
            local_socket.send(self._sock, {"kind": kind, **values}, wait=False)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the connection; `on_close` is called once."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._on_close(self)


def serve(name: str, on_connect: Callable[[socket.socket], None]) -> Callable[[], None]:
    """Accept this user's processes under an abstract name, on the running loop. Returns the function that stops it.

    Raises:
        OSError: the name is taken.
    """
    loop = asyncio.get_running_loop()
    sock = local_socket.listen(name)
    sock.setblocking(False)

    def acceptable() -> None:
        try:
            connection, _ = sock.accept()
        except OSError:
            return
        try:
            local_socket.check_peer(connection)
        except LocalSocketError:
            connection.close()
            return
        on_connect(connection)

    loop.add_reader(sock.fileno(), acceptable)

    def stop() -> None:
        loop.remove_reader(sock.fileno())
        sock.close()

    return stop
