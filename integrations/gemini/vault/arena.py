"""The buffers of one rank: which may be written next."""

from __future__ import annotations

from collections.abc import Callable

from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.gemini.vault.memory import Buffer, page_aligned

_SLACK_BYTES = 64 * 1024


class Arena:
    """A bounded pool. A buffer is free, granted to the trainer, or holds a shard of a copy.

    Args:
        count: how many buffers this rank may have.
        number: gives each new buffer its number.
    """

    def __init__(self, count: int, number: Callable[[], int]) -> None:
        self._count = self._allowed = count
        self._number = number
        self._free: list[Buffer] = []
        self._holding: dict[int, Buffer] = {}
        self.granted: Buffer | None = None
        self.capacity_bytes = 0

    @property
    def size(self) -> int:
        """Buffers in use and free."""
        return len(self._free) + len(self._holding) + (self.granted is not None)

    @property
    def has_free(self) -> bool:
        """Whether a buffer can be granted without dropping anything or taking more memory."""
        return any(buffer.busy == 0 for buffer in self._free)

    @property
    def taken_bytes(self) -> int:
        """Memory of all buffers."""
        granted = [self.granted] if self.granted is not None else []
        return sum(buffer.capacity_bytes for buffer in [*self._free, *self._holding.values(), *granted])

    def capacity_for(self, needed_bytes: int) -> int:
        """The size a buffer would have: some slack is added, and it never shrinks."""
        if needed_bytes <= self.capacity_bytes:
            return self.capacity_bytes
        return page_aligned(needed_bytes + needed_bytes // 16 + _SLACK_BYTES)

    def resize(self, needed_bytes: int) -> None:
        """From here on grant buffers of at least this size; smaller free ones are given back."""
        self._count = self._allowed
        if needed_bytes <= self.capacity_bytes:
            return
        self.capacity_bytes = self.capacity_for(needed_bytes)
        self.take_back()
        for buffer in self._free:
            buffer.discard()
        self._free.clear()

    def grant(self, evict: Callable[[], bool]) -> Buffer | None:
        """The next buffer to write to, None when every one is needed.

        Args:
            evict: drops the copy that is needed least (which ends in `release`); False when there is none.
        """
        if self.granted is None:
            self.granted = self._find(evict)
        return self.granted

    def _find(self, evict: Callable[[], bool]) -> Buffer | None:
        while True:
            for i, buffer in enumerate(self._free):
                if buffer.busy == 0:
                    return self._free.pop(i)
            if self.size < self._count and self.capacity_bytes:
                return Buffer(self._number(), self.capacity_bytes)
            if not evict():
                return None

    def captured(self, number: int) -> Buffer | None:
        """The granted buffer now holds a shard; None when it is not the one that was granted."""
        buffer = self.granted
        if buffer is None or buffer.number != number:
            return None
        self.granted = None
        self._holding[number] = buffer
        return buffer

    def release(self, buffer: Buffer) -> None:
        """A shard is no longer needed; its buffer is free, or given back if it has become too small."""
        if self._holding.pop(buffer.number, None) is None or buffer.capacity_bytes < self.capacity_bytes:
            buffer.discard()
        else:
            self._free.append(buffer)

    def take_back(self) -> None:
        """The trainer is gone: what it was granted is free. It may be half written, which nobody will ever read."""
        if self.granted is not None:
            self._free.append(self.granted)
            self.granted = None

    def close(self) -> None:
        """Give back everything that holds no shard, and grant nothing until `resize`."""
        self.take_back()
        for buffer in self._free:
            buffer.discard()
        self._free.clear()
        self._count = 0


def least_needed(copies: list[Copy], rank: int, needed: Callable[[Copy], bool]) -> Copy | None:
    """The oldest own copy whose memory may be reused for `rank`: not needed, not read, and not the newest.

    What a trainer has just written stays, so that a step that was passed a moment ago can still be pinned; so does the
    newest copy that all ranks have finished.
    """
    held = sorted((copy for copy in copies if copy.own and rank in copy.shards), key=lambda copy: copy.key)
    newest_complete = next((copy for copy in reversed(held) if copy.complete), None)
    for copy in held[:-1]:
        idle = all(shard.buffer.busy == 0 for shard in copy.shards.values())
        if copy is not newest_complete and idle and not needed(copy):
            return copy
    return None
