"""Memory of the vault: memfds, and who still needs them."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os

_PAGE_BYTES = 4096
# The linux/fcntl.h seals: nobody who was handed the descriptor can pull pages away from under us.
_F_ADD_SEALS = 1033
_F_SEAL_SHRINK_GROW = 0x0002 | 0x0004


class Buffer:
    """A memfd and its mapping.

    `busy` counts readers (hashing, a transfer, a restoring trainer); a busy buffer is neither reused nor closed.

    Args:
        number: names the buffer on its trainer's connection.
        capacity_bytes: at least; rounded up to pages.
    """

    def __init__(self, number: int, capacity_bytes: int) -> None:
        self.number = number
        self.capacity_bytes = max(_PAGE_BYTES, -(-capacity_bytes // _PAGE_BYTES) * _PAGE_BYTES)
        self.fd = os.memfd_create(f"lmr-vault-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.capacity_bytes)
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
