"""Memory of the vault: memfds, and who still needs them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from pathlib import Path

_PAGE_BYTES = 4096
# The linux/fcntl.h seals: nobody who was handed the descriptor can pull pages away from under us.
_F_ADD_SEALS = 1033
_F_SEAL_SHRINK_GROW = 0x0002 | 0x0004


def available_bytes() -> int:
    """What this machine, or the control group this process is in, can still give."""
    found = 1 << 62
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found = int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, IndexError):
        group = Path("/sys/fs/cgroup", Path("/proc/self/cgroup").read_text().split("::")[1].strip().lstrip("/"))
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            found = min(found, int(limit) - int((group / "memory.current").read_text()))
    return found


class Buffer:
    """A memfd and its mapping.

    `busy` counts readers (hashing, a transfer, a restoring trainer); a busy buffer is neither reused nor closed.

    Args:
        number: names the buffer on its trainer's connection.
        capacity_bytes: at least; rounded up to pages.

    Raises:
        OSError: there is no memory for it.
    """

    def __init__(self, number: int, capacity_bytes: int) -> None:
        self.number = number
        self.capacity_bytes = max(_PAGE_BYTES, -(-capacity_bytes // _PAGE_BYTES) * _PAGE_BYTES)
        if self.capacity_bytes > available_bytes():
            # The kernel would not say no: it would kill somebody.
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self.fd = os.memfd_create(f"lmr-vault-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # Pages are taken now, so that what is available is known when the next buffer is asked for.
            os.posix_fallocate(self.fd, 0, self.capacity_bytes)
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _F_SEAL_SHRINK_GROW)
            self._mapping = mmap.mmap(self.fd, self.capacity_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.memory = memoryview(self._mapping)
        self.busy = 0
        self._unwanted = False

    def hold(self) -> None:
        """Count one more reader."""
        self.busy += 1

    def let_go(self) -> None:
        """Count one reader less."""
        self.busy -= 1
        if self._unwanted and self.busy == 0:
            self._close()

    def discard(self) -> None:
        """Give the memory back as soon as nobody reads it."""
        if self._unwanted:
            return
        self._unwanted = True
        if self.busy == 0:
            self._close()

    def _close(self) -> None:
        # A slice somebody still refers to keeps the mapping until it is collected.
        with contextlib.suppress(BufferError):
            self.memory.release()
            self._mapping.close()
        os.close(self.fd)
