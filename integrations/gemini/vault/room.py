"""The copies of this node and the rules by which they come, stay and go. Runs on the reactor's thread only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from lmr.integrations.gemini.checkpoint_policy import CheckpointPolicy
from lmr.integrations.gemini.digest import ShardDigest
from lmr.integrations.gemini.shard import ShardMeta
from lmr.integrations.gemini.vault.arena import Arena, least_needed
from lmr.integrations.gemini.vault.copies import Copy, Key, Shard
from lmr.integrations.gemini.vault.hasher import Hasher
from lmr.integrations.gemini.vault.memory import Buffer
from lmr.integrations.gemini.vault.transfer import CopyHeader

Fact = Callable[[str, dict[str, Any]], None]


class Room:
    """What is kept, and why.

    A copy is needed while its step is pinned (to be published) or retained (published, to be kept). Own copies that are
    not needed live in a rolling pool; copies of other slots live on shelves of a few steps each.

    Args:
        node: this node's id.
        run: the run's id.
        policy: sizes and counts.
        hasher: measures copies.
        fact: tells the agent a fact.
        measured: called with an own copy once its digest is known.
        wanted: called with a pinned own copy when it is published: replicate it.
        freed: called when memory may have become free.
    """

    def __init__(
        self,
        node: str,
        run: str,
        policy: CheckpointPolicy,
        hasher: Hasher,
        fact: Fact,
        measured: Callable[[Copy], None],
        wanted: Callable[[Copy], None],
        freed: Callable[[], None],
    ) -> None:
        self.node = node
        self._run = run
        self._policy = policy
        self._hasher = hasher
        self._fact = fact
        self._measured = measured
        self._wanted = wanted
        self._freed = freed
        self._numbers = itertools.count(1)
        self.copies: dict[Key, Copy] = {}
        self.arenas: dict[int, Arena] = {}
        self.generation = -1
        self.slot: int | None = None
        self.ranks: tuple[int, ...] = ()
        self.restored_step = 0
        self._pinned: set[int] = set()
        self._retained: set[int] = set()
        self._flushing: set[Key] | None = None
        self._flushed: Callable[[], None] | None = None

    # Membership ------------------------------------------------------------------------------------------------

    def enter(self, generation: int, slot: int | None, ranks: Iterable[int], restored_step: int) -> None:
        """A new generation begins from `restored_step`: what older ones captured above it never happened."""
        self.generation, self.slot, self.ranks = generation, slot, tuple(ranks)
        self.restored_step = restored_step
        self._pinned.clear()
        self._retained = {restored_step}
        self._flushing = self._flushed = None
        for copy in list(self.copies.values()):
            if copy.generation < generation and (copy.step > restored_step or not copy.complete):
                self.drop(copy, "stale_generation")
        for rank in list(self.arenas):
            if rank not in self.ranks:
                self.arenas.pop(rank).close()
        for rank in self.ranks:
            self.arenas.setdefault(rank, Arena(self._policy.buffers, lambda: next(self._numbers)))

    def is_stale(self, generation: int, step: int) -> bool:
        """Whether a copy belongs to a past that has been undone."""
        return generation < self.generation and step > self.restored_step

    # Captures --------------------------------------------------------------------------------------------------

    def grant(self, rank: int) -> Buffer | None:
        """A buffer for the rank's next capture.

        Raises:
            OSError: there is no memory for one more.
        """
        arena = self.arenas.get(rank)

        def evict() -> bool:
            copy = least_needed(list(self.copies.values()), rank, self._is_needed)
            if copy is not None:
                self.drop(copy, "superseded")
            return copy is not None

        return None if arena is None else arena.grant(evict)

    def can_grant(self, rank: int) -> bool:
        """Whether a buffer is there or can be made free, without taking more memory."""
        arena = self.arenas.get(rank)
        if arena is None:
            return False
        return arena.has_free or least_needed(list(self.copies.values()), rank, self._is_needed) is not None

    def captured(
        self, generation: int, step: int, meta: ShardMeta, number: int, peers: list[int] | None
    ) -> Copy | None:
        """A trainer has filled the buffer it was granted; None when that is refused."""
        arena = self.arenas.get(meta.rank)
        if arena is None or self.slot is None:
            return None
        if generation != self.generation or step <= self.restored_step:
            arena.take_back()
            return None
        buffer = arena.captured(number)
        if buffer is None or meta.total_bytes > buffer.capacity_bytes:
            return None
        copy = self.copies.setdefault(
            (generation, step, self.slot), Copy(generation, step, self.slot, self.ranks, own=True)
        )
        if meta.rank in copy.shards:
            arena.release(buffer)
            return None
        copy.shards[meta.rank] = Shard(meta, buffer, peers)
        if copy.complete:
            if self._is_needed(copy):
                self._hasher.measure(copy, self._has_measured)
            else:
                self._hasher.measure_if_idle(copy, self._has_measured)
        return copy

    def newest_captured(self) -> int | None:
        """The newest step every rank of the slot has captured in this generation."""
        return max((c.step for c in self._own() if c.complete and c.generation == self.generation), default=None)

    def _has_measured(self, copy: Copy, digests: dict[int, ShardDigest], slot_digest: str) -> None:
        if self.copies.get(copy.key) is copy:
            for rank, found in digests.items():
                copy.shards[rank].digest = found
            copy.digest = slot_digest
            self._measured(copy)
            if self._is_needed(copy):
                self._publish(copy)
            if self._flushing is not None and copy.key in self._flushing:
                self._publish(copy)
                self._flushing.discard(copy.key)
                self._end_flush()
        self._freed()

    def _publish(self, copy: Copy) -> None:
        if copy.published or not copy.own:
            return
        copy.published = True
        self._fact(
            "checkpoint_captured",
            {
                "generation": copy.generation,
                "step": copy.step,
                "slot": copy.slot,
                "node": self.node,
                "digest": copy.digest,
                "bytes": copy.total_bytes,
            },
        )
        if copy.step in self._pinned:
            self._wanted(copy)

    # Pinning and keeping ---------------------------------------------------------------------------------------

    def pin(self, step: int) -> None:
        """Publish and keep this step: one still held now, one to come when it comes."""
        if not self._flushing:
            self._flushing = None  # training goes on after a flush: what it kept may go again
        self._pinned.add(step)
        for copy in self._own():
            if copy.step == step and copy.generation == self.generation and copy.complete and not copy.published:
                if copy.digest is not None:
                    self._publish(copy)
                elif copy.hashing:
                    self._hasher.hurry(copy)
                else:
                    self._hasher.measure(copy, self._has_measured)

    def retain(self, steps: Iterable[int]) -> None:
        """Keep these published steps; older pins are over."""
        self._retained = set(steps)
        newest = max(self._retained, default=0)
        self._pinned = {step for step in self._pinned if step > newest}
        for copy in list(self.copies.values()):
            if not copy.own and not self._is_needed(copy) and copy.step < newest:
                self.drop(copy, "superseded")
        self._freed()

    def _is_needed(self, copy: Copy) -> bool:
        if self._flushing is not None and copy.own and copy.generation == self.generation:
            return True
        return copy.step in self._retained or (copy.step in self._pinned and copy.generation == self.generation)

    def flush(self, done: Callable[[], None]) -> None:
        """Publish every complete capture of this generation, keep all of them, then call `done`."""
        self._flushed = done
        waiting = [c for c in self._own() if c.complete and c.generation == self.generation and not c.published]
        self._flushing = {copy.key for copy in waiting if copy.digest is None}
        for copy in sorted(waiting, key=lambda c: c.step):
            if copy.digest is not None:
                self._publish(copy)
            elif copy.hashing:
                self._hasher.hurry(copy)
            else:
                self._hasher.measure(copy, self._has_measured)
        self._end_flush()

    def _end_flush(self) -> None:
        if not self._flushing and self._flushed is not None:
            done, self._flushed = self._flushed, None
            done()

    # Copies that come and go -----------------------------------------------------------------------------------

    def find(self, step: int, slot: int) -> Copy | None:
        """The complete, measured copy of a step, of the newest generation that has one."""
        found = [c for c in self.copies.values() if c.step == step and c.slot == slot and c.complete and c.digest]
        return max(found, key=lambda copy: copy.key, default=None)

    def allocate(self, header: CopyHeader) -> dict[int, Buffer]:
        """Buffers for a copy that arrives from elsewhere."""
        buffers: dict[int, Buffer] = {}
        try:
            for rank, (meta, _, _) in header.shards.items():
                buffers[rank] = Buffer(next(self._numbers), meta.total_bytes)
        except BaseException:
            self.abandon(buffers)
            raise
        return buffers

    def add(self, header: CopyHeader, buffers: dict[int, Buffer]) -> Copy:
        """Keep a verified copy that arrived from elsewhere, and say so."""
        copy = Copy(header.generation, header.step, header.slot, tuple(sorted(header.shards)), own=False)
        for rank, (meta, found, peers) in header.shards.items():
            copy.shards[rank] = Shard(meta, buffers[rank], peers, found)
        copy.digest = header.digest
        copy.published = True
        former = self.copies.pop(copy.key, None)
        self.copies[copy.key] = copy
        if former is not None:
            self._give_back(former)
        self._fact(
            "checkpoint_replicated",
            {
                "generation": copy.generation,
                "step": copy.step,
                "slot": copy.slot,
                "holder": self.node,
                "digest": copy.digest,
            },
        )
        self._tidy_shelf(copy.slot)
        return copy

    def drop(self, copy: Copy, why: str) -> None:
        """Forget a copy; the agent is told if it had been told of it."""
        if self.copies.get(copy.key) is not copy:
            return
        del self.copies[copy.key]
        self._give_back(copy)
        if copy.published:
            self._fact(
                "checkpoint_dropped",
                {
                    "generation": copy.generation,
                    "step": copy.step,
                    "slot": copy.slot,
                    "holder": self.node,
                    "tier": copy.tier,
                    "why": why,
                },
            )

    def _give_back(self, copy: Copy) -> None:
        for rank, shard in copy.shards.items():
            arena = self.arenas.get(rank) if copy.own else None
            if arena is None:
                shard.buffer.discard()
            else:
                arena.release(shard.buffer)

    def _tidy_shelf(self, slot: int) -> None:
        """Of another slot's copies the needed ones stay, and the newest others as far as the shelf goes."""
        shelf = sorted((c for c in self.copies.values() if not c.own and c.slot == slot), key=lambda c: c.key)
        for copy in shelf[:-1]:
            if len(shelf) <= self._policy.replica_copies:
                return
            if copy.step not in self._retained and not any(s.buffer.busy for s in copy.shards.values()):
                self.drop(copy, "superseded")
                shelf.remove(copy)

    def _own(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.own and copy.slot == self.slot]

    def measure(self, copy: Copy, done: Callable[[Copy, dict[int, ShardDigest], str], None]) -> None:
        """Measure a copy again, for certain; `done` is called on the reactor's thread."""
        self._hasher.measure(copy, done)

    # What the server asks (`server.Shelves`) -------------------------------------------------------------------

    def make_room(self, header: CopyHeader) -> dict[int, Buffer] | str:
        """Buffers for a replica that is about to arrive, `have`, or why it is refused."""
        if self.is_stale(header.generation, header.step):
            return "stale_generation"
        present = self.copies.get((header.generation, header.step, header.slot))
        if present is not None and present.digest == header.digest:
            return "have"
        try:
            return self.allocate(header)
        except OSError as error:
            return f"no memory: {error.strerror}"

    def shelve(self, header: CopyHeader, buffers: dict[int, Buffer]) -> str | None:
        """Keep a replica that has arrived, unless its time has passed meanwhile."""
        if self.is_stale(header.generation, header.step):
            self.abandon(buffers)
            return "stale_generation"
        self.add(header, buffers)
        return None

    def abandon(self, buffers: dict[int, Buffer]) -> None:
        """Give buffers of a broken transfer back."""
        for buffer in buffers.values():
            buffer.discard()

    def take_down(self, step: int, slot: int) -> tuple[CopyHeader, Copy] | str:
        """A copy another node wants, held until `let_go`; or `missing`."""
        copy = self.find(step, slot)
        if copy is None:
            return "missing"
        copy.hold()
        return CopyHeader.of(self._run, copy), copy

    def let_go(self, copy: Copy) -> None:
        """The other node has it."""
        copy.let_go()
        self._freed()
