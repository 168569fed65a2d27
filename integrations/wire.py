"""Sealed frames: what travels between nodes, on the link and between vaults.

A connection opens with a nonce from each side (`hello_bytes`, 16 bytes, sent by both). From then on every frame is

    length (4 bytes, big endian) | HMAC-SHA256 (32 bytes) | payload

The key is derived from the run's secret and both nonces, so a recorded connection cannot be played back; the MAC
covers direction and a counter, so a frame cannot be repeated, reordered or reflected. Payloads are JSON objects.
State travels between frames as it is, and is checked by digests that a frame named. Nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any, Literal

NONCE_BYTES = 16
HEADER_BYTES = 4 + 32
FRAME_MAX_BYTES = 16 * 1024 * 1024
"""No frame is larger; bulk state travels as many frames."""

Side = Literal["client", "server"]


class WireError(Exception):
    """The peer broke the framing: wrong secret, damaged or oversized frame."""


def hello_bytes() -> bytes:
    """A fresh nonce, the first bytes each side sends."""
    return os.urandom(NONCE_BYTES)


class Seal:
    """Seals outgoing payloads and opens incoming ones for one connection.

    Args:
        secret: the run's secret.
        side: which end this is; the two ends seal under different labels.
        client_nonce: the nonce the connecting side sent.
        server_nonce: the nonce the accepting side sent.
    """

    def __init__(self, secret: bytes, side: Side, client_nonce: bytes, server_nonce: bytes) -> None:
        self._key = hmac.new(secret, b"lmr-wire-1\0" + client_nonce + server_nonce, hashlib.sha256).digest()
        self._out = side[:1].encode()
        self._in = b"s" if side == "client" else b"c"
        self._sent = 0
        self._seen = 0

    def _mac(self, label: bytes, counter: int, payload: bytes | memoryview) -> bytes:
        mac = hmac.new(self._key, label + struct.pack(">Q", counter), hashlib.sha256)
        mac.update(payload)
        return mac.digest()

    def header(self, payload: bytes | memoryview) -> bytes:
        """The 36 bytes that go before `payload`; lets a sender avoid a copy.

        Raises:
            WireError: the payload is larger than a frame may be.
        """
        if len(payload) > FRAME_MAX_BYTES:
            raise WireError(f"a frame of {len(payload)} bytes is larger than {FRAME_MAX_BYTES}")
        mac = self._mac(self._out, self._sent, payload)
        self._sent += 1
        return struct.pack(">I", len(payload)) + mac

    def seal(self, payload: bytes) -> bytes:
        """One whole frame."""
        return self.header(payload) + payload

    @staticmethod
    def length(header: bytes) -> int:
        """The payload length a header announces.

        Raises:
            WireError: larger than a frame may be.
        """
        (length,) = struct.unpack(">I", header[:4])
        if length > FRAME_MAX_BYTES:
            raise WireError(f"the peer announced a frame of {length} bytes; {FRAME_MAX_BYTES} is the most")
        return int(length)

    def check(self, header: bytes, payload: bytes | memoryview) -> None:
        """Accept `payload` as the next frame.

        Raises:
            WireError: the MAC does not fit: another secret, or a damaged, repeated or reordered frame.
        """
        if not hmac.compare_digest(header[4:], self._mac(self._in, self._seen, payload)):
            raise WireError("a frame failed authentication: do all nodes share one secret?")
        self._seen += 1


def encode(message: dict[str, Any]) -> bytes:
    """A control message as bytes."""
    return json.dumps(message, separators=(",", ":")).encode()


def decode(payload: bytes | memoryview) -> dict[str, Any]:
    """A control message from bytes.

    Raises:
        WireError: not a JSON object.
    """
    try:
        message = json.loads(bytes(payload))
    except ValueError as error:
        raise WireError(f"a control frame is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError("a control frame is not a JSON object")
    return message


class Channel:
    """A sealed connection over a blocking socket; one thread sends, one receives.

    Args:
        sock: connected stream socket; owned by the channel from here on.
        secret: the run's secret.
        side: `client` when this end connected.

    Raises:
        OSError: the peer went away during the opening.
    """

    def __init__(self, sock: socket.socket, secret: bytes, side: Side) -> None:
        self.sock = sock
        mine = hello_bytes()
        sock.sendall(mine)
        theirs = self._exactly(NONCE_BYTES)
        client, server = (mine, theirs) if side == "client" else (theirs, mine)
        self.seal = Seal(secret, side, client, server)

    def _exactly(self, count: int) -> bytes:
        buffer = bytearray(count)
        self._fill(memoryview(buffer))
        return bytes(buffer)

    def _fill(self, view: memoryview) -> None:
        while view:
            view = view[self.recv_unsealed_into(view) :]

    def send(self, message: dict[str, Any]) -> None:
        """Send one control message."""
        self.sock.sendall(self.seal.seal(encode(message)))

    def recv(self) -> dict[str, Any]:
        """Receive one control message."""
        header = self._exactly(HEADER_BYTES)
        payload = self._exactly(Seal.length(header))
        self.seal.check(header, payload)
        return decode(payload)

    def send_unsealed(self, payload: bytes | memoryview) -> None:
        """Send bytes as they are: only what the receiver checks by digests it was given in a frame."""
        self.sock.sendall(payload)

    def recv_unsealed_into(self, view: memoryview) -> int:
        """Receive some bytes as they are; returns how many. They are worth nothing until their digest was checked."""
        got = self.sock.recv_into(view)
        if not got:
            raise ConnectionResetError("the peer closed the connection")
        return got

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        self.sock.close()


class AsyncChannel:
    """A sealed connection over asyncio streams, for control messages only."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seal: Seal) -> None:
        self.reader = reader
        self.writer = writer
        self._seal = seal

    @classmethod
    async def open(
        cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, side: Side
    ) -> AsyncChannel:
        """Exchange nonces and return the sealed connection."""
        mine = hello_bytes()
        writer.write(mine)
        theirs = await reader.readexactly(NONCE_BYTES)
        client, server = (mine, theirs) if side == "client" else (theirs, mine)
        return cls(reader, writer, Seal(secret, side, client, server))

    def send(self, message: dict[str, Any]) -> None:
        """Queue one message; never waits (the transport buffers)."""
        self.writer.write(self._seal.seal(encode(message)))

    @property
    def backlog_bytes(self) -> int:
        """What was queued and has not left yet."""
        return self.writer.transport.get_write_buffer_size()

    async def recv(self) -> dict[str, Any]:
        """The next message.

        Raises:
            asyncio.IncompleteReadError: the peer closed.
            WireError: bad frame.
        """
        header = await self.reader.readexactly(HEADER_BYTES)
        payload = await self.reader.readexactly(Seal.length(header))
        self._seal.check(header, payload)
        return decode(payload)

    def close(self) -> None:
        """Close the connection at once."""
        self.writer.close()
