"""The sockets of a node's processes: abstract Unix sockets that carry messages (`local_message`).

SOCK_SEQPACKET keeps message boundaries and order, and says when the peer is gone. The names are in the abstract
namespace, so nothing is left on disk; who connects is checked by uid, because such names have no file mode.
"""

from __future__ import annotations

import socket
from typing import cast

from lmr.integrations.torchrun import local_message

MESSAGE_MAX_BYTES = local_message.MESSAGE_MAX_BYTES
LocalSocketError = local_message.LocalSocketError
check_peer = local_message.check_peer
make_room = local_message.make_room
receive = local_message.receive
send = local_message.send


def listen(name: str) -> socket.socket:
    """A listening socket under an abstract name."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind("\0" + name)
    server.listen(128)
    return server


def connect(name: str, timeout_s: float = 5.0) -> socket.socket:
    """See `local_message.connect`."""
    return cast("socket.socket", local_message.connect(name, timeout_s, socket.socket))
