"""Messages between the processes of one node: one JSON object each, and file descriptors beside it.

Every supervisor loads this before its trainer can start, several at once on a busy machine. It therefore takes from the
interpreter's own C modules what `socket` and `json` wrap: those two load enumerations and regular expressions, and take
longer than all the rest of a supervisor's start.
"""

from __future__ import annotations

import os
from struct import calcsize, pack, unpack

TYPE_CHECKING = False  # importing typing is a tenth of a supervisor's start
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any
else:
    import _socket as socket

MESSAGE_MAX_BYTES = 1024 * 1024
_FDS_MAX = 16


class LocalSocketError(Exception):
    """The peer sent something that is not one JSON object, or is not us."""


def connect(name: str, timeout_s: float = 5.0, kind: Callable[..., Any] = socket.socket) -> Any:
    """Connect to an abstract name; the socket is blocking afterwards.

    Args:
        name: without the leading zero byte.
        timeout_s: how long the connection may take to be accepted.
        kind: the class of the socket.

    Raises:
        OSError: nobody listens.
        LocalSocketError: somebody else's process does.
    """
    client = kind(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(timeout_s)
    try:
        client.connect("\0" + name)
        check_peer(client)
    except BaseException:
        client.close()
        raise
    make_room(client)
    client.settimeout(None)
    return client


def make_room(sock: socket.socket) -> None:
    """Let messages be as large as the kernel allows."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MESSAGE_MAX_BYTES)


def check_peer(sock: socket.socket) -> int:
    """The peer's pid.

    Raises:
        LocalSocketError: the peer runs under another uid.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, calcsize("3i"))
    pid, uid, _gid = unpack("3i", raw)
    if uid != os.getuid():
        raise LocalSocketError(f"the peer runs as uid {uid}")
    return int(pid)


def send(sock: socket.socket, message: dict[str, Any], fds: list[int] | None = None, *, wait: bool = True) -> None:
    """Send one message.

    Args:
        sock: a connected socket.
        message: what to say.
        fds: file descriptors to pass along; the caller keeps its own.
        wait: False raises BlockingIOError instead of waiting for the peer to read.
    """
    body = _encoded(message).encode()
    if len(body) > MESSAGE_MAX_BYTES:
        raise LocalSocketError(f"a {message.get('kind')} message of {len(body)} bytes is too large")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, pack(f"{len(fds)}i", *fds))] if fds else []
    sock.sendmsg([body], rights, 0 if wait else socket.MSG_DONTWAIT)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and the descriptors that came with it; None when the peer is gone.

    Raises:
        LocalSocketError: not one JSON object.
    """
    fds: list[int] = []
    space = socket.CMSG_SPACE(_FDS_MAX * calcsize("i"))
    try:
        try:
            body, ancillary, flags, _ = sock.recvmsg(MESSAGE_MAX_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it left without reading everything; the kernel says so before its own last words
            body, ancillary, flags, _ = sock.recvmsg(MESSAGE_MAX_BYTES, space, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError:
        return None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            count = len(data) // calcsize("i")
            fds += unpack(f"{count}i", data[: count * calcsize("i")])
    if not body and not fds:
        return None
    try:
        message = _decoded(body.decode())
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        raise LocalSocketError(f"a message of {len(body)} bytes is not one JSON object")
    return message, fds


class _Plain:
    """How values are read: as Python's own types."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = float


def _codec() -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """JSON, encoded and decoded by the parts that `json` is made of."""
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)
    scan: Callable[[str, int], tuple[Any, int]] = make_scanner(_Plain)  # type: ignore[arg-type]

    def encoded(value: Any) -> str:
        return "".join(encode(value, 0))

    def decoded(text: str) -> Any:
        try:
            value, end = scan(text, 0)
        except StopIteration:
            raise ValueError("no JSON value") from None
        if end != len(text):
            raise ValueError("more than one JSON value")
        return value

    if decoded(encoded(_SAMPLE)) != _SAMPLE:
        raise TypeError("other parts")
    return encoded, decoded


_SAMPLE = {"text": "\u00fc", "some": [1, 0.5, None, True]}


def _refuse(value: Any) -> None:
    raise TypeError(f"{type(value).__name__} is no JSON value")


try:
    _encoded, _decoded = _codec()
except (ImportError, TypeError, AttributeError):  # an interpreter of other parts
    import json

    _encoded, _decoded = json.JSONEncoder(separators=(",", ":")).encode, json.loads
