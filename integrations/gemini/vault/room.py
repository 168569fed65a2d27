"""The copies of this node and the rules by which they come, stay and go. Runs on the reactor's thread only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from lmr.integrations.gemini.checkpoint_policy import CheckpointPolicy
from lmr.integrations.gemini.digest import ShardDigest
from lmr.integrations.gemini.shard import ShardMeta
from lmr.integrations.gemini.vault.arena import Arena, least_needed
from lmr.integrations.gemini.vault.arrivals import Arrivals
from lmr.integrations.gemini.vault.budget import Budget, compute
from lmr.integrations.gemini.vault.copies import Copy, Key, Shard
from lmr.integrations.gemini.vault.disk import DiskTier
from lmr.integrations.gemini.vault.hasher import Hasher
from lmr.integrations.gemini.vault.memory import Buffer, available_bytes
from lmr.integrations.gemini.vault.transfer import CopyHeader

_SAVED_KEPT_STEPS = 64
"""How far back a step that the script saved is remembered; its capture is measured long before."""


class TellFact(Protocol):
    """Tells the agent a fact."""

    def __call__(self, kind: str, data: dict[str, Any]) -> None:
        """Say it."""


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
        fact: TellFact,
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
        self.numbers = itertools.count(1)
        """Each buffer of this vault gets the next one."""
        self.copies: dict[Key, Copy] = {}
        self.arenas: dict[int, Arena] = {}
        self.generation = -1
        self.slot: int | None = None
        self.ranks: tuple[int, ...] = ()
        self.restored_step = 0
        self.disk: DiskTier | None = None
        self._history: str | None = None
        self.head: dict[str, Any] | None = None
        """Seq and hash of the plan's record: what the log held when this generation began."""
        self._budget: Budget | None = None
        self.arrivals = Arrivals(self, run)
        self._pinned: set[int] = set()
        self._retained: set[int] = set()
        self._saved: set[int] = set()
        self._flushing: set[Key] | None = None
        self._flushed: list[Callable[[], None]] = []

    # Membership ------------------------------------------------------------------------------------------------

    def enter(self, generation: int, slot: int | None, ranks: Iterable[int], restored_step: int, history: str) -> None:
        """A new generation begins from `restored_step`: what older ones captured above it never happened.

        Args:
            generation: its number.
            slot: of this node; None when it stands by.
            ranks: of the slot.
            restored_step: where it begins.
            history: names the event log. Another log of the same run id knows nothing of what was kept under the first.
        """
        if self._history not in (None, history):
            for copy in list(self.copies.values()):
                self.drop(copy, "another_history")
        self._history = history
        self._tidy_disk(generation, restored_step, history)
        self.generation, self.slot, self.ranks = generation, slot, tuple(ranks)
        self.restored_step = restored_step
        self._pinned.clear()
        self._retained = {restored_step}
        self._saved.clear()
        self._flushing = None
        self._end_flush()
        for copy in list(self.copies.values()):
            if copy.generation < generation and (copy.step > restored_step or not copy.complete):
                self.drop(copy, "stale_generation")
        self.arrivals.give_up_stale()
        for rank in list(self.arenas):
            if rank not in self.ranks:
                self.arenas.pop(rank).close()
        for rank in self.ranks:
            self.arenas.setdefault(rank, Arena(self._buffers(), lambda: next(self.numbers)))

    def _tidy_disk(self, generation: int, restored_step: int, history: str) -> None:
        for kept in list(self.disk.copies.values()) if self.disk is not None else ():
            assert self.disk is not None
            if kept.history != history:
                self.disk.drop(kept, "another_history")
            elif kept.header.generation < generation and kept.header.step > restored_step:
                self.disk.drop(kept, "stale_generation")

    def _buffers(self) -> int:
        """Buffers of a rank: one more where one may be on its way to disk."""
        return self._policy.buffers + (self.disk is not None)

    def is_stale(self, generation: int, step: int) -> bool:
        """Whether a copy belongs to a past that has been undone."""
        return generation < self.generation and step > self.restored_step

    # Memory ----------------------------------------------------------------------------------------------------

    def size_up(self, rank: int, needed_bytes: int) -> Budget | None:
        """A rank says how large its state is; None when it has no arena here."""
        arena = self.arenas.get(rank)
        if arena is None:
            return None
        capacity = arena.capacity_for(needed_bytes)
        budget = self._compute(capacity, len(self.ranks) * capacity)
        if budget.own_fits:
            arena.resize(needed_bytes)
        else:
            arena.close()
        return budget

    def _compute(self, rank_bytes: int, slot_bytes: int) -> Budget:
        taken = self.arrivals.taken_bytes + sum(arena.taken_bytes for arena in self.arenas.values())
        limit = available_bytes() + taken
        self._budget = compute(self._policy, len(self.ranks), rank_bytes, slot_bytes, self._buffers(), limit)
        return self._budget

    def budget_for_others(self, needed_bytes: int) -> int:
        """Bytes that copies of other slots may take in all; a standby, which has no state, goes by theirs."""
        budget = self._budget
        if budget is None or not self.ranks:
            budget = self._compute(0, max([needed_bytes, *(copy.total_bytes for copy in self.copies.values())]))
        return budget.others_bytes if budget.others_fit else 0

    # Captures --------------------------------------------------------------------------------------------------

    def grant(self, rank: int) -> Buffer | None:
        """A buffer for the rank's next capture.

        Raises:
            OSError: there is no memory for one more.
        """
        arena = self.arenas.get(rank)

        def evict() -> bool:
            copy = least_needed(list(self.copies.values()), rank, self.is_needed) or self._unneeded_sharer()
            if copy is not None:
                self.drop(copy, "superseded")
            return copy is not None

        return None if arena is None else arena.grant(evict)

    def _unneeded_sharer(self) -> Copy | None:
        """A replica that is not needed and keeps memory of this node's own captures from being used again."""
        for copy in self.copies.values():
            buffers = [shard.buffer for shard in copy.shards.values()]
            shares = not copy.own and any(buffer.overlaid for buffer in buffers)
            if shares and not self.is_needed(copy) and not any(buffer.busy for buffer in buffers):
                return copy
        return None

    def can_grant(self, rank: int) -> bool:
        """Whether a buffer is there or can be made free, without taking more memory."""
        arena = self.arenas.get(rank)
        if arena is None:
            return False
        if arena.has_free or self._unneeded_sharer() is not None:
            return True
        return least_needed(list(self.copies.values()), rank, self.is_needed) is not None

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
            if self.is_needed(copy) or self.is_saved(copy):
                self._hasher.measure(copy, self._has_measured)
            else:
                self._hasher.measure_if_idle(copy, self._has_measured)
        return copy

    def check(self, step: int) -> None:
        """The script saves this step: its capture, held now or to come, is measured for certain, and that is told."""
        if step in self._saved:
            return
        self._saved = {one for one in self._saved if one > step - _SAVED_KEPT_STEPS} | {step}
        for copy in self._own():
            if copy.step == step and copy.generation == self.generation and copy.complete:
                if copy.digest is not None:
                    self._measured(copy)
                else:
                    self._measure_now(copy)

    def is_saved(self, copy: Copy) -> bool:
        """Whether the script saves the step of this capture, too."""
        return copy.step in self._saved and copy.generation == self.generation

    def _measure_now(self, copy: Copy) -> None:
        if copy.hashing:
            self._hasher.hurry(copy)
        else:
            self._hasher.measure(copy, self._has_measured)

    def newest_captured(self) -> int | None:
        """The newest step every rank of the slot has captured in this generation."""
        return max((c.step for c in self._own() if c.complete and c.generation == self.generation), default=None)

    def _has_measured(self, copy: Copy, digests: dict[int, ShardDigest], slot_digest: str) -> None:
        if self.copies.get(copy.key) is copy:
            for rank, found in digests.items():
                copy.shards[rank].digest = found
            copy.digest = slot_digest
            self._measured(copy)
            if self.is_needed(copy):
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
        self._fact(**self.fact_of(copy))
        if copy.step in self._pinned:
            self._wanted(copy)

    # Pinning and keeping ---------------------------------------------------------------------------------------

    def pin(self, step: int) -> None:
        """Publish and keep this step: one still held now, one to come when it comes."""
        if not self._flushing:
            self._flushing = None  # training goes on after a flush: what it kept may go again
        self._pinned = {step}  # one is in flight at a time: an older one that was missed is over
        for copy in self._own():
            if copy.step == step and copy.generation == self.generation and copy.complete and not copy.published:
                if copy.digest is not None:
                    self._publish(copy)
                else:
                    self._measure_now(copy)

    def retain(self, steps: Iterable[int], spill: int | None = None) -> None:
        """Keep these published steps; older pins are over.

        Args:
            steps: to keep in memory.
            spill: the one among them that goes to disk too, if any.
        """
        if spill is not None:
            self.spill(spill)
        self._retained = set(steps)
        newest = max(self._retained, default=0)
        self._pinned = {step for step in self._pinned if step > newest}
        for copy in list(self.copies.values()):
            if not copy.own and not self.is_needed(copy) and copy.step < newest:
                self.drop(copy, "superseded")
        self._freed()

    def spill(self, step: int) -> None:
        """Write what is here of a step to disk, where there is one."""
        for copy in self.copies.values():
            if copy.step == step:
                self.save_to_disk(copy, lambda: None)

    def save_to_disk(self, copy: Copy, then: Callable[[], None]) -> bool:
        """Write a copy to disk, and call `then` at the end; False when there is no disk or nothing to write."""
        if self.disk is None or not copy.complete or copy.digest is None:
            return False
        self.disk.save(CopyHeader.of(self._run, copy), self._history or "", copy, then, self.head)
        return True

    def own_published(self) -> list[Copy]:
        """This slot's copies the run knows of, newest first."""
        found = [copy for copy in self.copies.values() if copy.slot == self.slot and copy.published]
        return sorted(found, key=lambda copy: copy.key, reverse=True)

    def is_retained(self, copy: Copy) -> bool:
        """Whether every node keeps this step."""
        return copy.step in self._retained

    def is_needed(self, copy: Copy) -> bool:
        """Whether the copy must stay."""
        if self._flushing is not None and copy.own and copy.generation == self.generation:
            return True
        return copy.step in self._retained or (copy.step in self._pinned and copy.generation == self.generation)

    def flush(self, done: Callable[[], None]) -> None:
        """Publish every complete capture of this generation, keep all of them, then call `done`."""
        self._flushed.append(done)
        waiting = [c for c in self._own() if c.complete and c.generation == self.generation and not c.published]
        self._flushing = {copy.key for copy in waiting if copy.digest is None}
        for copy in sorted(waiting, key=lambda c: c.step):
            if copy.digest is not None:
                self._publish(copy)
            else:
                self._measure_now(copy)
        self._end_flush()

    def _end_flush(self) -> None:
        if not self._flushing:
            ended, self._flushed = self._flushed, []
            for done in ended:
                done()

    # Copies that come and go -----------------------------------------------------------------------------------

    def find(self, step: int, slot: int) -> Copy | None:
        """The complete, measured copy of a step, of the newest generation that has one."""
        found = [c for c in self.copies.values() if c.step == step and c.slot == slot and c.complete and c.digest]
        return max(found, key=lambda copy: copy.key, default=None)

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
        self._fact(**self.fact_of(copy))
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
        self._hasher.measure(copy, done, idle_cores=True)

    def fact_of(self, copy: Copy) -> dict[str, Any]:
        """What is said of a copy, as `{"kind", "data"}`."""
        data: dict[str, Any] = {"generation": copy.generation, "step": copy.step, "slot": copy.slot}
        if copy.own:
            data |= {"node": self.node, "digest": copy.digest, "bytes": copy.total_bytes}
            return {"kind": "checkpoint_captured", "data": data}
        return {"kind": "checkpoint_replicated", "data": {**data, "holder": self.node, "digest": copy.digest}}

    def freed(self) -> None:
        """Memory may have become free."""
        self._freed()

    def is_awaited(self, step: int) -> bool:
        """Whether this node is about to capture a step itself."""
        if self.slot is None or step not in self._pinned:
            return False
        return not any(copy.step == step and copy.digest is not None for copy in self._own())
