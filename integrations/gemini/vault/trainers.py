"""The vault's conversations with the trainers of its node: buffers go out, captures come in, shards are handed out."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import structlog

from lmr.integrations.gemini.errors import ShardMismatch
from lmr.integrations.gemini.shard import ShardMeta
from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.gemini.vault.messages import read, tell
from lmr.integrations.gemini.vault.reactor import Reactor
from lmr.integrations.gemini.vault.restoring import Origin
from lmr.integrations.gemini.vault.room import Room

_log = structlog.get_logger(__name__)
_PROGRESS_S = 0.05


class Trainer:
    """One trainer's connection."""

    def __init__(self, sock: socket.socket, rank: int, generation: int) -> None:
        self.sock = sock
        self.rank = rank
        self.generation = generation
        self.known: set[int] = set()
        self.owed = False
        self.reading: Copy | None = None


class Trainers:
    """All of them, one a rank; what they are told follows from the room. Runs on the reactor's thread only.

    Args:
        reactor: says when one of them speaks.
        room: the copies.
        tell_agent: hears what does not fit into memory, and how far training is.
    """

    def __init__(self, reactor: Reactor, room: Room, tell_agent: Callable[[dict[str, Any]], object]) -> None:
        self._reactor = reactor
        self._room = room
        self._tell_agent = tell_agent
        self._present: dict[int, Trainer] = {}
        self._waiting: list[Trainer] = []
        self._origin: Origin | None = None
        self._may_load = False
        self._progress_at = 0.0
        self._progress: int | None = None
        self._refusals_said: set[tuple[str, int]] = set()

    # Coming and going ------------------------------------------------------------------------------------------

    def greet(self, sock: socket.socket, rank: int, generation: int) -> None:
        """A trainer has come; it takes the place of the one before, unless it is the older one."""
        present = self._present.get(rank)
        if present is not None and present.generation > generation:
            tell(sock, {"kind": "over", "generation": present.generation})
            sock.close()  # one that lost a vault and has been replaced since
            return
        self._left(present)
        trainer = self._present[rank] = Trainer(sock, rank, generation)
        self._reactor.watch(sock, lambda: self._hear(trainer))

    def send_away(self, generation: int) -> None:
        """A generation begins: trainers of older ones are told, and nothing may be loaded yet."""
        for trainer in list(self._present.values()):
            if trainer.generation < generation:
                tell(trainer.sock, {"kind": "over", "generation": generation})
                self._left(trainer)
        self._origin, self._may_load = None, False
        self._progress = None

    def _left(self, trainer: Trainer | None) -> None:
        if trainer is None:
            return
        self._reactor.forget(trainer.sock)
        trainer.sock.close()
        self._stop_reading(trainer)
        if trainer in self._waiting:
            self._waiting.remove(trainer)
        if self._present.get(trainer.rank) is trainer:
            del self._present[trainer.rank]
            arena = self._room.arenas.get(trainer.rank)
            if arena is not None:
                arena.take_back()

    def _hear(self, trainer: Trainer) -> None:
        message = read(trainer.sock)
        if message is None:
            self._left(trainer)
            return
        kind = message.get("kind")
        if trainer.generation != self._room.generation and kind != "restore":
            tell(trainer.sock, {"kind": "grant", "buffer": None, "why": "stale_generation"})
        elif kind == "arena":
            self._size_up(trainer, int(message["bytes"]))
        elif kind == "captured":
            self._captured(trainer, message)
        elif kind == "check":
            self._room.check(int(message["step"]))
        elif kind == "restore":
            self._waiting.append(trainer)
            self._answer_restores()
        elif kind == "restored":
            self._stop_reading(trainer)

    # Captures --------------------------------------------------------------------------------------------------

    def _size_up(self, trainer: Trainer, needed_bytes: int) -> None:
        """The size of the state is known: compute what this node may take, and say what does not fit."""
        budget = self._room.size_up(trainer.rank, needed_bytes)
        if budget is None:
            return
        for what, why in budget.refusals():
            if (what, self._room.generation) not in self._refusals_said:
                self._refusals_said.add((what, self._room.generation))
                self._tell_agent({"kind": "degraded", "what": what, "why": f"no memory: {why}"})
        self._tell_agent({"kind": "memory", "bound_bytes": budget.bound_bytes, "limit_bytes": budget.limit_bytes})
        self._grant(trainer)

    def _captured(self, trainer: Trainer, message: dict[str, Any]) -> None:
        try:
            meta = ShardMeta.parse(message["meta"])
        except ShardMismatch as error:
            _log.warning("vault.capture_refused", rank=trainer.rank, error=str(error))
            return
        self._room.captured(trainer.generation, int(message["step"]), meta, int(message["buffer"]), message["peers"])
        self._grant(trainer)
        self._report_progress()

    def _grant(self, trainer: Trainer) -> None:
        """Grant the next buffer, now or when one becomes free; its memory travels along once."""
        why = "all_needed"
        try:
            buffer = self._room.grant(trainer.rank)
        except OSError as error:
            buffer, why = None, "no_memory"
            self._tell_agent({"kind": "degraded", "what": "captures", "why": f"no memory: {error.strerror}"})
        trainer.owed = buffer is None
        if buffer is None:
            tell(trainer.sock, {"kind": "grant", "buffer": None, "why": why})
            return
        fresh = buffer.number not in trainer.known
        message = {"kind": "grant", "buffer": buffer.number, "bytes": buffer.capacity_bytes}
        if tell(trainer.sock, message, [buffer.fd] if fresh else None):
            trainer.known.add(buffer.number)

    def pay_grants(self) -> None:
        """Memory may have become free: who was refused a buffer gets one."""
        for trainer in self._present.values():
            if trainer.owed and self._room.can_grant(trainer.rank):
                self._grant(trainer)

    def _report_progress(self) -> None:
        newest, now = self._room.newest_captured(), time.monotonic()
        if newest is None or newest == self._progress:
            return
        if now - self._progress_at >= _PROGRESS_S:
            self._progress, self._progress_at = newest, now
            self._tell_agent({"kind": "progress", "step": newest})

    # Restores --------------------------------------------------------------------------------------------------

    def restorable(self, origin: Origin) -> None:
        """The slot's copy of the step to restore is here and verified, or will be read by the trainers themselves."""
        self._origin = origin
        self._answer_restores()

    def may_load(self) -> None:
        """Every slot is ready."""
        self._may_load = True
        self._answer_restores()

    def _answer_restores(self) -> None:
        """Once every slot is ready: hand each trainer its rank's shard."""
        origin = self._origin
        if origin is None or not self._may_load:
            return
        waiting, self._waiting = self._waiting, []
        for trainer in waiting:
            self._hand_out(trainer, origin)

    def _hand_out(self, trainer: Trainer, origin: Origin) -> None:
        room = self._room
        where = {"slot": room.slot, "holder": origin.holder, "tier": origin.tier}
        if origin.tier == "durable":
            tell(trainer.sock, {"kind": "durable", "step": room.restored_step, **where})
            return
        copy = None if room.slot is None else room.find(room.restored_step, room.slot)
        shard = None if copy is None else copy.shards.get(trainer.rank)
        if copy is None or shard is None:
            tell(trainer.sock, {"kind": "restore_failed", "why": "missing"})
            return
        copy.hold()
        trainer.reading = copy
        about = {"step": copy.step, **where, "bytes": shard.buffer.capacity_bytes, "meta": shard.meta.to_json()}
        tell(trainer.sock, {"kind": "shard", **about}, [shard.buffer.fd])

    def _stop_reading(self, trainer: Trainer) -> None:
        if trainer.reading is not None:
            trainer.reading.let_go()
            trainer.reading = None
