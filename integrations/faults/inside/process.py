"""What happens to the trainer's process, its memory and its sockets."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_BPF_RET_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # linux/filter.h: keep 0 bytes of the packet
_ROOM_BYTES = 64 << 20
_PIECE_BYTES = 16 << 20


class InjectedError(Exception):
    """What the effect `exception` raises."""


def die() -> NoReturn:
    """SIGKILL, as an operator or the kernel's out-of-memory killer sends it."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL returned")


def hang() -> NoReturn:
    """Never go on."""
    while True:
        time.sleep(3600)


def fail() -> NoReturn:
    """An error the script does not expect."""
    raise InjectedError("a fault was injected here")


def exhaust_memory() -> NoReturn:
    """Take what is left of a limited address space; the allocation that fails is torch's."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM_BYTES, most))
    taken = []
    while True:
        taken.append(torch.ones(_PIECE_BYTES, dtype=torch.uint8))


def drop_messages() -> None:
    """Have the kernel throw away whatever arrives on the connections to other ranks, without telling anybody."""
    store = int(os.environ.get("MASTER_PORT", "0"))
    program = ctypes.create_string_buffer(_BPF_RET_NOTHING)
    # struct sock_fprog: the number of instructions, then where they are
    fprog = struct.pack("HxxxxxxP", 1, ctypes.addressof(program))
    dropped = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(int(entry)))
            with found:
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.getpeername()[1] != store:
                    found.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, fprog)
                    dropped += 1
    if not dropped:
        raise InjectedError("this rank has no connection whose messages could be dropped")


STRIKES: dict[str, Callable[[], None]] = {
    "hang": hang,
    "exception": fail,
    "resource_exhaustion": exhaust_memory,
    "message_drop": drop_messages,
}
