"""A TCP relay in front of a vault that counts what passes and can cut the line."""

from __future__ import annotations

import contextlib
import socket
import threading


class WireTap:
    """Stands for the node behind it: hand it to `NodeDouble.enter` instead.

    Args:
        name: of the node behind.
        port: of its vault.
        cut_after_bytes: the first connection ends once so much has passed.
        flip_at: this byte to the node arrives with one bit flipped, once.
    """

    def __init__(self, name: str, port: int, cut_after_bytes: int | None = None, flip_at: int | None = None) -> None:
        self.name = name
        self.passed_bytes: list[int] = []
        """Bytes of each connection, both ways."""
        self._target = port
        self._cut = cut_after_bytes
        self._flip_at = flip_at
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            number = len(self.passed_bytes)
            self.passed_bytes.append(0)
            server = socket.create_connection(("127.0.0.1", self._target))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._relay, args=(number, source, sink), daemon=True).start()

    def _relay(self, number: int, source: socket.socket, sink: socket.socket) -> None:
        to_node, arrived = sink.getpeername()[1] == self._target, 0
        with contextlib.suppress(OSError):
            while body := source.recv(64 * 1024):
                if number == 0 and self._cut is not None and self.passed_bytes[0] + len(body) > self._cut:
                    break
                self.passed_bytes[number] += len(body)
                if to_node and self._flip_at is not None and arrived <= self._flip_at < arrived + len(body):
                    at, self._flip_at = self._flip_at - arrived, None
                    body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
                arrived += len(body)
                sink.sendall(body)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the relay of the other direction
            end.close()  # what was not read any more is answered by a reset, as from a machine that is gone
