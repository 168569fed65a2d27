"""Copies that come from other nodes, and those that go to them. Runs on the reactor's thread only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.gemini.vault.disk import DiskCopy
from lmr.integrations.gemini.vault.filling import Filling
from lmr.integrations.gemini.vault.memory import Buffer, page_aligned
from lmr.integrations.gemini.vault.transfer import CopyHeader

if TYPE_CHECKING:
    from lmr.integrations.gemini.vault.room import Room


class Arrivals:
    """What the server asks of the copies (`server.Shelves`).

    Args:
        room: the copies.
        run: the run's id.
    """

    def __init__(self, room: Room, run: str) -> None:
        self._room = room
        self._run = run
        self._buffers: list[Buffer] = []
        self._fillings: dict[int, Filling] = {}
        """Copies on their way here, by slot."""

    # Memory ----------------------------------------------------------------------------------------------------

    @property
    def taken_bytes(self) -> int:
        """Memory of copies that came from elsewhere, those on their way included."""
        self._buffers = [buffer for buffer in self._buffers if not buffer.closed]
        return sum(buffer.taken_bytes for buffer in self._buffers)

    def _may_take(self, needed_bytes: int) -> bool:
        """Whether so much more may be held, if need be without what is needed least."""
        room = self._room
        allowed_bytes = room.budget_for_others(needed_bytes)
        shelved = [copy for copy in room.copies.values() if not copy.own and not room.is_needed(copy)]
        for copy in sorted(shelved, key=lambda copy: copy.key):
            if self.taken_bytes + needed_bytes <= allowed_bytes:
                break
            if not any(shard.buffer.busy for shard in copy.shards.values()):
                room.drop(copy, "superseded")
        return self.taken_bytes + needed_bytes <= allowed_bytes

    def allocate(self, header: CopyHeader, *, sparse: bool = False) -> dict[int, Buffer]:
        """Buffers for a copy that arrives from elsewhere."""
        buffers: dict[int, Buffer] = {}
        try:
            for rank, (meta, _, _) in header.shards.items():
                buffers[rank] = Buffer(next(self._room.numbers), meta.total_bytes, sparse=sparse)
                self._buffers.append(buffers[rank])
        except BaseException:
            self.abandon(buffers)
            raise
        return buffers

    def give_up_stale(self) -> None:
        """A generation began: what comes of an undone past is not waited for."""
        for begun in list(self._fillings.values()):
            if self._room.is_stale(begun.header.generation, begun.header.step):
                self._give_up(begun.header.slot)

    # In and out ------------------------------------------------------------------------------------------------

    def make_room(self, header: CopyHeader) -> Filling | str:
        """Room for a replica that is about to arrive, `have`, or why it is refused."""
        if self._room.is_stale(header.generation, header.step):
            return "stale_generation"
        key = (header.generation, header.step, header.slot)
        present = self._room.copies.get(key)
        if present is not None and present.digest == header.digest:
            return "have"
        begun = self._fillings.get(header.slot)
        if begun is not None and begun.header.digest == header.digest:
            return begun
        self._give_up(header.slot)
        if not self._may_take(sum(page_aligned(meta.total_bytes) for meta, _, _ in header.shards.values())):
            return "no memory: the bound for copies of other nodes is reached"
        try:
            self._fillings[header.slot] = Filling(header, self.allocate(header, sparse=True))
        except OSError as error:
            return f"no memory: {error.strerror}"
        return self._fillings[header.slot]

    def _give_up(self, slot: int) -> None:
        """What has come so far of a slot's copy is no longer waited for."""
        begun = self._fillings.pop(slot, None)
        if begun is not None:
            begun.claim()
            self.abandon(begun.buffers)

    def is_awaited(self, step: int) -> bool:
        """Whether this node is about to capture the same step itself."""
        return self._room.is_awaited(step)

    def settle_in(self, filling: Filling) -> list[Copy] | str:
        """Share what data-parallel peers hold alike of the same step, and take memory for the rest.

        Returns:
            Copies from which unchanged chunks may be copied, held until `let_go`; or why there is no memory.
        """
        header = filling.header
        for copy in self._room.copies.values():
            if copy.digest is not None and copy.step == header.step and copy.generation == header.generation:
                filling.share(copy)
        try:
            filling.reserve()
        except OSError as error:
            self._give_up(header.slot)
            return f"no memory: {error.strerror}"
        return self._alike(header)

    def _alike(self, header: CopyHeader) -> list[Copy]:
        """Own state of the same step, which data-parallel peers share, and what is here of the slot's older steps."""
        found = [
            copy
            for copy in self._room.copies.values()
            if copy.digest is not None
            and ((copy.own and copy.step == header.step) or (copy.slot == header.slot and copy.step <= header.step))
        ]
        for copy in found:
            copy.hold()
        return sorted(found, key=lambda copy: copy.key, reverse=True)

    def shelve(self, filling: Filling) -> str | None:
        """Keep a replica that has arrived, unless its time has passed meanwhile."""
        header = filling.header
        if self._fillings.get(header.slot) is not filling:
            return "superseded"
        if self._room.is_stale(header.generation, header.step):
            self._give_up(header.slot)
            return "stale_generation"
        del self._fillings[header.slot]
        self._room.add(header, filling.buffers)
        return None

    def abandon(self, buffers: dict[int, Buffer]) -> None:
        """Give buffers of a transfer that is over back."""
        for buffer in buffers.values():
            buffer.discard()

    def take_down(self, step: int, slot: int) -> tuple[CopyHeader, Copy] | str:
        """A copy another node wants, held until `let_go`; or `missing`."""
        copy = self._room.find(step, slot)
        if copy is None:
            return "missing"
        copy.hold()
        return CopyHeader.of(self._run, copy), copy

    def on_disk(self, step: int, slot: int) -> DiskCopy | None:
        """The copy on this node's disk."""
        return self._room.disk.find(step, slot) if self._room.disk is not None else None

    def let_go(self, copy: Copy) -> None:
        """The other node has it."""
        copy.let_go()
        self._room.freed()
