"""Messages between the processes of one node: abstract Unix sockets, one JSON object a message.

SOCK_SEQPACKET keeps message boundaries and order, and says when the peer is gone. The names are in the abstract
namespace, so nothing is left on disk; who connects is checked by uid, because such names have no file mode.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from typing import Any

MESSAGE_MAX_BYTES = 1024 * 1024
_FDS_MAX = 16


class LocalSocketError(Exception):
    """The peer sent something that is not one JSON object, or is not us."""


def listen(name: str) -> socket.socket:
    """A listening socket under an abstract name."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind("\0" + name)
    server.listen(128)
    return server


def connect(name: str, timeout_s: float = 5.0) -> socket.socket:
    """Connect to an abstract name; the socket is blocking afterwards.

    Raises:
        OSError: nobody listens.
        LocalSocketError: somebody else's process does.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(timeout_s)
    try:
        client.connect("\0" + name)
        check_peer(client)
    except BaseException:
        client.close()
        raise
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MESSAGE_MAX_BYTES)
    client.settimeout(None)
    return client


def check_peer(sock: socket.socket) -> int:
    """The peer's pid.

    Raises:
        LocalSocketError: the peer runs under another uid.
    """
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _gid = struct.unpack("3i", raw)
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
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MESSAGE_MAX_BYTES:
        raise LocalSocketError(f"a {message.get('kind')} message of {len(body)} bytes is too large")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([body], rights, 0 if wait else socket.MSG_DONTWAIT)


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and the descriptors that came with it; None when the peer is gone.

    Raises:
        LocalSocketError: not one JSON object.
    """
    fds = array.array("i")
    space = socket.CMSG_SPACE(_FDS_MAX * fds.itemsize)
    try:
        try:
            body, ancillary, flags, _ = sock.recvmsg(MESSAGE_MAX_BYTES, space)
        except ConnectionResetError:  # it left without reading everything; the kernel says so before its own last words
            body, ancillary, flags, _ = sock.recvmsg(MESSAGE_MAX_BYTES, space)
    except ConnectionError:
        return None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if not body:
        return None
    try:
        message = json.loads(body)
    except ValueError:
        message = None
    if not isinstance(message, dict) or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for fd in fds:
            os.close(fd)
        raise LocalSocketError(f"a message of {len(body)} bytes is not one JSON object")
    return message, list(fds)
