"""The copies a vault holds: one slot's state of one step."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from lmr.integrations.gemini import digest, finite
from lmr.integrations.gemini.digest import Each, ShardDigest
from lmr.integrations.gemini.errors import ShardMismatch
from lmr.integrations.gemini.shard import ShardMeta
from lmr.integrations.gemini.vault.memory import Buffer

Key = tuple[int, int, int]
"""(generation, step, slot)"""


@dataclass
class Shard:
    """One rank's bytes in a buffer; `peers` are the ranks whose shared part must be equal."""

    meta: ShardMeta
    buffer: Buffer
    peers: list[int] | None = None
    digest: ShardDigest | None = None


@dataclass
class Copy:
    """One slot's state of one step, as it grows rank by rank."""

    generation: int
    step: int
    slot: int
    ranks: tuple[int, ...]
    own: bool
    shards: dict[int, Shard] = field(default_factory=dict)
    digest: str | None = None
    published: bool = False
    hashing: bool = False

    @property
    def key(self) -> Key:
        """What names the copy."""
        return (self.generation, self.step, self.slot)

    @property
    def complete(self) -> bool:
        """Every rank of the slot is here."""
        return set(self.shards) == set(self.ranks)

    @property
    def total_bytes(self) -> int:
        """Bytes of all ranks."""
        return sum(shard.meta.total_bytes for shard in self.shards.values())

    @property
    def tier(self) -> str:
        """What the copy is called in facts of this node."""
        return "memory" if self.own else "replica"

    def memories(self) -> dict[int, memoryview]:
        """Each rank's bytes."""
        return {rank: shard.buffer.memory[: shard.meta.total_bytes] for rank, shard in self.shards.items()}

    def hold(self) -> None:
        """Nobody may reuse the memory until `let_go`."""
        for shard in self.shards.values():
            shard.buffer.hold()

    def let_go(self) -> None:
        """The reader is done."""
        for shard in self.shards.values():
            shard.buffer.let_go()

    def measure(self, threads: int = 1) -> tuple[dict[int, ShardDigest], str]:
        """Digests of the bytes as they are now, and whether what must be finite is.

        Reads all memory, so hold the copy and keep off the loop's thread.

        Args:
            threads: how many may read at once.
        """
        if threads == 1:
            return self._measure(map)
        with ThreadPoolExecutor(threads, "measure") as pool:
            return self._measure(pool.map)

    def _measure(self, each: Each) -> tuple[dict[int, ShardDigest], str]:
        found = {rank: _measure(shard, each) for rank, shard in self.shards.items()}
        return found, digest.of_slot({rank: (self.shards[rank].meta, found[rank]) for rank in found})


def _measure(shard: Shard, each: Each) -> ShardDigest:
    memory, meta = shard.buffer.memory, shard.meta
    try:
        nonfinite = finite.first_nonfinite(memory, meta, each)
    except ShardMismatch:  # damaged entries: the digest tells
        nonfinite = None
    return replace(digest.of_shard(memory, meta, each), nonfinite=nonfinite)
