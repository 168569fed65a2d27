"""Memory of the vault: memfds, and who still needs them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from lmr.integrations.gemini.vault.overlay import replace_pages

_PAGE_BYTES = 4096
_COPY_BYTES = 8 * 1024 * 1024
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


def page_aligned(count: int) -> int:
    """Bytes rounded up to whole pages."""
    return max(_PAGE_BYTES, -(-count // _PAGE_BYTES) * _PAGE_BYTES)


@dataclass(frozen=True)
class _Overlay:
    """A stretch of a buffer that shows another's bytes from an offset on."""

    start: int
    end: int
    source: Buffer
    offset: int


class Buffer:
    """A memfd and its mapping.

    `busy` counts readers (hashing, a transfer, a restoring trainer); a busy buffer is neither reused nor closed.

    Args:
        number: names the buffer on its trainer's connection.
        capacity_bytes: at least; rounded up to pages.
        sparse: pages are taken by `reserve` only; what is overlaid with another buffer's takes none.

    Raises:
        OSError: there is no memory for it.
    """

    def __init__(self, number: int, capacity_bytes: int, *, sparse: bool = False) -> None:
        self.number = number
        self.capacity_bytes = page_aligned(capacity_bytes)
        if self.capacity_bytes > available_bytes():
            # The kernel would not say no: it would kill somebody.
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        self.fd = os.memfd_create(f"lmr-vault-{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, self.capacity_bytes)
            if not sparse:
                # Pages are taken now, so that what is available is known when the next buffer is asked for.
                os.posix_fallocate(self.fd, 0, self.capacity_bytes)
            fcntl.fcntl(self.fd, _F_ADD_SEALS, _F_SEAL_SHRINK_GROW)
            self._mapping = mmap.mmap(self.fd, self.capacity_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.memory = memoryview(self._mapping)
        self.taken_bytes = 0 if sparse else self.capacity_bytes
        self._overlays: list[_Overlay] = []
        self.busy = 0
        self.closed = False
        self._unwanted = False

    def reserve(self, start: int, end: int) -> None:
        """Take the pages of a stretch that is about to be written.

        Raises:
            OSError: there is no memory for them.
        """
        first, last = start // _PAGE_BYTES * _PAGE_BYTES, page_aligned(end)
        os.posix_fallocate(self.fd, first, last - first)
        self.taken_bytes = min(self.capacity_bytes, self.taken_bytes + last - first)

    def overlay(self, start: int, end: int, source: Buffer, offset: int) -> bool:
        """Show another buffer's bytes in a stretch that was not reserved; False where pages do not lie alike.

        The other buffer is held for as long as this one lives.
        """
        if start % _PAGE_BYTES or end % _PAGE_BYTES or offset % _PAGE_BYTES:
            return False
        for there in source._overlays:
            if there.start < offset + end - start and offset < there.end:
                inside = there.start <= offset and offset + end - start <= there.end
                return inside and self.overlay(start, end, there.source, there.offset + offset - there.start)
        replace_pages(self._mapping, start, end, source.fd, offset, writable=False)
        source.hold()
        self._overlays.append(_Overlay(start, end, source, offset))
        return True

    @property
    def overlaid(self) -> bool:
        """Whether the descriptor alone does not have all the bytes."""
        return bool(self._overlays)

    def settle(self) -> list[Buffer]:
        """Copy what is overlaid into this buffer's own memory; returns the buffers to let go of, for the loop's thread.

        Raises:
            OSError: there is no memory for it.
        """
        sources = []
        while self._overlays:
            there = self._overlays[-1]
            self.reserve(there.start, there.end)
            for at in range(there.start, there.end, _COPY_BYTES):
                os.pwrite(self.fd, self.memory[at : min(at + _COPY_BYTES, there.end)], at)
            replace_pages(self._mapping, there.start, there.end, self.fd, there.start, writable=True)
            sources.append(there.source)
            self._overlays.pop()
        return sources

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
        self.closed = True
        # A slice somebody still refers to keeps the mapping until it is collected.
        with contextlib.suppress(BufferError):
            self.memory.release()
            self._mapping.close()
        os.close(self.fd)
        overlays, self._overlays = self._overlays, []
        for there in overlays:
            there.source.let_go()
