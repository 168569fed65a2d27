"""The spool of facts that nobody has committed yet: bounded in memory, the rest on disk.

The oldest facts are in memory, ready to be sent again; what does not fit follows in a temporary file that has no name,
so nothing is left behind. When even that is full, checkpoint facts give way, which later ones replace, and their number
is said.
"""

from __future__ import annotations

import json
import tempfile
from collections import deque
from dataclasses import dataclass
from typing import IO, Any

import structlog

log = structlog.get_logger("lmr.spool")

MEMORY_FACTS = 10_000
DISK_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True)
class Spooled:
    """One fact that is not acknowledged yet; a retry sends these very values."""

    counter: int
    event_id: str
    envelope: dict[str, Any]

    @property
    def expendable(self) -> bool:
        """Newer facts of the same kind make up for its loss."""
        return str(self.envelope["type"]).startswith("checkpoint_")


class Spool:
    """First in, first out, until acknowledged.

    Args:
        memory_facts: facts kept in memory.
        disk_bytes: what the rest may take on disk.
    """

    def __init__(self, memory_facts: int = MEMORY_FACTS, disk_bytes: int = DISK_BYTES) -> None:
        self._memory_facts = memory_facts
        self._disk_bytes = disk_bytes
        self._memory: deque[Spooled] = deque()
        self._file: IO[bytes] | None = None
        self._read_at = 0
        self._on_disk = 0
        self._behind: deque[Spooled] = deque()
        """Facts that must not be lost though the disk is full; they come after everything on disk."""
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._memory) + self._on_disk + len(self._behind)

    def push(self, fact: Spooled) -> bool:
        """Take one fact. True when it may be sent now; false when it waits behind others on disk, or was dropped."""
        if self._behind:
            self._keep_or_drop(fact)
        elif self._on_disk or len(self._memory) >= self._memory_facts:
            self._spill(fact)
        else:
            self._memory.append(fact)
            return True
        return False

    def in_memory(self) -> list[Spooled]:
        """The oldest unacknowledged facts, in order."""
        return list(self._memory)

    def acknowledge(self, upto: int) -> list[Spooled]:
        """Forget facts up to a counter. Returns facts that moved up and may be sent now."""
        while self._memory and self._memory[0].counter <= upto:
            self._memory.popleft()
        if len(self._memory) >= max(1, self._memory_facts // 2):
            return []
        moved = self._refill() if self._on_disk else []
        while not self._on_disk and self._behind and len(self._memory) < self._memory_facts:
            moved.append(self._behind.popleft())
            self._memory.append(moved[-1])
        return moved

    def _spill(self, fact: Spooled) -> None:
        line = json.dumps([fact.counter, fact.event_id, fact.envelope], separators=(",", ":")).encode() + b"\n"
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="lmr-spool-")  # noqa: SIM115 - lives as long as the spool
                log.warning("spool_spills_to_disk", facts=len(self._memory))
            end = self._file.seek(0, 2)
            if end + len(line) > self._disk_bytes:
                self._keep_or_drop(fact)
                return
            self._file.write(line)
        except OSError as error:
            log.error("spool_not_on_disk", why=str(error))
            self._keep_or_drop(fact)
            return
        self._on_disk += 1

    def _keep_or_drop(self, fact: Spooled) -> None:
        """No room on disk: the fact goes if later ones replace it; others are few, and kept."""
        if not fact.expendable:
            self._behind.append(fact)
            return
        self.dropped += 1
        if self.dropped & (self.dropped - 1) == 0:  # 1, 2, 4, 8, ...: say it without filling the log
            log.error("spool_full", dropped=self.dropped)

    def _refill(self) -> list[Spooled]:
        assert self._file is not None
        self._file.seek(self._read_at)
        loaded: list[Spooled] = []
        while self._on_disk and len(self._memory) + len(loaded) < self._memory_facts:
            loaded.append(Spooled(*json.loads(self._file.readline())))
            self._on_disk -= 1
        self._read_at = self._file.tell()
        if not self._on_disk:
            self._file.close()
            self._file, self._read_at = None, 0
        self._memory.extend(loaded)
        return loaded
