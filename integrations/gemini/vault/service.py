"""The vault's conversations: with its agent, with trainers, and through sender and server with other vaults."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from lmr.integrations.gemini.checkpoint_policy import CheckpointPolicy
from lmr.integrations.gemini.errors import ShardMismatch
from lmr.integrations.gemini.shard import ShardMeta
from lmr.integrations.gemini.vault import disk
from lmr.integrations.gemini.vault.copies import Copy, Key
from lmr.integrations.gemini.vault.disk import DiskCopy, DiskTier
from lmr.integrations.gemini.vault.hasher import Hasher
from lmr.integrations.gemini.vault.reactor import Reactor
from lmr.integrations.gemini.vault.restoring import Origin, Restorer
from lmr.integrations.gemini.vault.room import Room
from lmr.integrations.gemini.vault.saving import Saver
from lmr.integrations.gemini.vault.sender import Sender
from lmr.integrations.gemini.vault.server import Server
from lmr.integrations.gemini.vault.stock import take_stock
from lmr.integrations.gemini.vault.transfer import Peer
from lmr.integrations.torchrun import local_socket

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


class Service:
    """One node's vault.

    Args:
        node: this node's id.
        run: the run's id.
        secret: the run's secret, for connections between vaults.
        socket_name: abstract name to listen on for agent and trainers.
        host: address to listen on for other vaults.
        policy: sizes, counts and times.
    """

    def __init__(
        self, node: str, run: str, secret: bytes, socket_name: str, host: str, policy: CheckpointPolicy
    ) -> None:
        self._run = run
        self._secret = secret
        self._policy = policy
        self._reactor = Reactor()
        self._room = Room(
            node,
            run,
            policy,
            Hasher(self._reactor.post),
            self._tell_fact,
            self._compare,
            self._replicate,
            self._pay_grants,
        )
        if policy.disk_folder is not None:
            self._room.disk = DiskTier(
                disk.node_folder(Path(policy.disk_folder), run, node),
                run,
                policy.disk_keep,
                self._reactor.post,
                self._flushed_to_disk,
                self._dropped_from_disk,
                self._not_on_disk,
            )
        self._restorer = Restorer(
            run, policy, self._reactor, self._room, lambda: self._secret, self._ready_to_load, self._restore_failed
        )
        self._agent: socket.socket | None = None
        self._orphaned_since: float | None = time.monotonic()
        self._trainers: dict[int, Trainer] = {}
        self._senders: list[Sender] = []
        self._deliveries: dict[Key, int] = {}
        self._when_delivered: dict[Key, list[Callable[[], None]]] = {}
        self._saver = Saver(self._room, self._deliver)
        self._ending = False
        self._origin: Origin | None = None
        self._may_load = False
        self._waiting: list[Trainer] = []
        self._progress_at = 0.0
        self._progress: int | None = None
        self._nonfinite_said = -1
        self._refusals_said: set[tuple[str, int]] = set()
        self._server = Server(
            host,
            run,
            secret,
            self._reactor.ask,
            self._room.arrivals,
            policy.transfer_timeout_s,
            policy.chunk_bytes,
        )
        self._listener = local_socket.listen(socket_name)
        self._reactor.watch(self._listener, self._accept)
        self._watch_orphanage()

    def run(self) -> None:
        """Serve until closed or orphaned."""
        self._reactor.run()

    def told_to_end(self) -> None:
        """This process got SIGTERM: save, and end as soon as no agent needs it. Callable from a signal handler."""
        self._reactor.post(lambda: self._saver.save(self._end_if_orphaned))

    def _end_if_orphaned(self, told: dict[str, Any]) -> None:
        _log.info("vault.saved", **told)
        self._ending = True
        if self._agent is None:
            self._reactor.stop()

    # Connections -----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        try:
            local_socket.check_peer(sock)
        except (OSError, local_socket.LocalSocketError) as error:
            _log.warning("vault.stranger", error=str(error))
            sock.close()
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * local_socket.MESSAGE_MAX_BYTES)
        self._reactor.watch(sock, lambda: self._greet(sock))

    def _greet(self, sock: socket.socket) -> None:
        """The first message says who it is."""
        self._reactor.forget(sock)
        message = self._read(sock)
        if message is None or message.get("kind") != "hello":
            sock.close()
        elif message.get("role") == "agent":
            self._adopt(sock, message.get("secret"))
        elif message.get("role") == "trainer":
            trainer = Trainer(sock, int(message["rank"]), int(message["generation"]))
            present = self._trainers.get(trainer.rank)
            if present is not None and present.generation > trainer.generation:
                self._tell(sock, {"kind": "over", "generation": present.generation})
                sock.close()  # one that lost a vault and has been replaced since
                return
            self._trainer_left(present)
            self._trainers[trainer.rank] = trainer
            self._reactor.watch(sock, lambda: self._hear_trainer(trainer))
        else:
            sock.close()

    def _read(self, sock: socket.socket) -> dict[str, Any] | None:
        try:
            received = local_socket.receive(sock)
        except (OSError, local_socket.LocalSocketError) as error:
            _log.warning("vault.unreadable", error=str(error))
            return None
        return None if received is None else received[0]

    def _tell(self, sock: socket.socket | None, message: dict[str, Any], fds: list[int] | None = None) -> bool:
        """Never waits: a reader that does not read loses messages, and the vault goes on."""
        if sock is None:
            return False
        try:
            local_socket.send(sock, message, fds, wait=False)
        except OSError as error:
            if not isinstance(error, ConnectionError):
                _log.warning("vault.untold", kind=message.get("kind"), error=str(error))
            return False
        return True

    # The agent -------------------------------------------------------------------------------------------------

    def _adopt(self, sock: socket.socket, secret: str | None) -> None:
        """An agent that comes back may have been given another secret meanwhile."""
        if secret is not None:
            self._secret = self._server.secret = bytes.fromhex(secret)
        if self._agent is not None:
            self._agent_left(self._agent)
        self._agent, self._orphaned_since = sock, None
        self._reactor.watch(sock, lambda: self._hear_agent(sock))
        self._tell(sock, {"kind": "ready", "port": self._server.port, "pid": os.getpid()})
        take_stock(self._room, lambda held: self._tell_held(sock, held))

    def _tell_held(self, sock: socket.socket, held: list[dict[str, Any]]) -> None:
        self._tell(sock, {"kind": "held", "copies": held})

    def _agent_left(self, sock: socket.socket) -> None:
        self._reactor.forget(sock)
        sock.close()
        if self._agent is sock:
            self._agent, self._orphaned_since = None, time.monotonic()
            if self._ending:
                self._reactor.stop()

    def _watch_orphanage(self) -> None:
        since = self._orphaned_since
        if since is not None and time.monotonic() - since >= self._policy.orphan_s:
            _log.info("vault.orphaned", seconds=self._policy.orphan_s)
            self._reactor.stop()
        self._reactor.after(min(1.0, self._policy.orphan_s / 2), self._watch_orphanage)

    def _hear_agent(self, sock: socket.socket) -> None:
        message = self._read(sock)
        if message is None:
            self._agent_left(sock)
            return
        kind = message.get("kind")
        if kind == "generation":
            self._enter(message)
        elif kind == "load":
            if int(message["generation"]) == self._room.generation:
                self._may_load = True
                self._answer_restores()
        elif kind == "replicate_to":
            fresh = self._replicate_to(_peers(message))
            for copy in filter(self._room.is_retained, self._room.own_published()):
                self._replicate(copy, fresh)
        elif kind == "pin":
            self._room.pin(int(message["step"]))
        elif kind == "retain":
            self._room.retain([int(step) for step in message["steps"]], message.get("spill"))
        elif kind == "flush":
            self._room.flush(self._tell_flushed)
        elif kind == "save":
            self._saver.save(lambda told: self._tell_saved(sock, told))
        elif kind == "close":
            if message.get("forget") and self._room.disk is not None:
                self._room.disk.clear()
            self._reactor.stop()
        else:
            _log.warning("vault.unknown_message", kind=kind)

    def _enter(self, message: dict[str, Any]) -> None:
        generation = int(message["generation"])
        checkpoint = message.get("checkpoint") or {"step": 0, "sources": []}
        step, slot = int(checkpoint["step"]), message.get("slot")
        for trainer in list(self._trainers.values()):
            if trainer.generation < generation:
                self._tell(trainer.sock, {"kind": "over", "generation": generation})
                self._trainer_left(trainer)
        ranks = [int(rank) for rank in message.get("ranks", [])]
        self._room.enter(generation, slot, ranks, step, str(message.get("history", "")))
        self._room.head = message.get("head") or None
        self._origin, self._may_load = None, False
        self._progress = None
        self._replicate_to(_peers(message))
        if slot is not None and step > 0 and not message.get("loaded"):
            source: dict[str, Any] = next((s for s in checkpoint.get("sources", []) if s["slot"] == slot), {})
            self._restorer.begin(step, int(slot), source)

    # Restoring -------------------------------------------------------------------------------------------------

    def _ready_to_load(self, copy: Copy | None, origin: Origin) -> None:
        self._origin = origin
        step = self._room.restored_step
        self._tell(
            self._agent,
            {"kind": "restorable", "generation": self._room.generation, "step": step, "tier": origin.tier},
        )
        if copy is not None:
            self._replicate(copy)  # peers that hold it already say so; the others have just joined or lost theirs
        self._answer_restores()

    def _restore_failed(self, step: int, slot: int, origin: Origin, why: str) -> None:
        self._tell(
            self._agent,
            {
                "kind": "restore_failed",
                "generation": self._room.generation,
                "step": step,
                "slot": slot,
                "holder": origin.holder,
                "tier": origin.tier,
                "why": why,
            },
        )

    def _answer_restores(self) -> None:
        """Once every slot is ready: hand each trainer its rank's shard."""
        origin = self._origin
        if origin is None or not self._may_load:
            return
        waiting, self._waiting = self._waiting, []
        for trainer in waiting:
            where = {"slot": self._room.slot, "holder": origin.holder, "tier": origin.tier}
            if origin.tier == "durable":
                self._tell(trainer.sock, {"kind": "durable", "step": self._room.restored_step, **where})
                continue
            copy = None if self._room.slot is None else self._room.find(self._room.restored_step, self._room.slot)
            shard = None if copy is None else copy.shards.get(trainer.rank)
            if copy is None or shard is None:
                self._tell(trainer.sock, {"kind": "restore_failed", "why": "missing"})
                continue
            copy.hold()
            trainer.reading = copy
            self._tell(
                trainer.sock,
                {
                    "kind": "shard",
                    "step": copy.step,
                    **where,
                    "bytes": shard.buffer.capacity_bytes,
                    "meta": shard.meta.to_json(),
                },
                [shard.buffer.fd],
            )

    # Trainers --------------------------------------------------------------------------------------------------

    def _hear_trainer(self, trainer: Trainer) -> None:
        message = self._read(trainer.sock)
        if message is None:
            self._trainer_left(trainer)
            return
        kind = message.get("kind")
        if trainer.generation != self._room.generation and kind != "restore":
            self._tell(trainer.sock, {"kind": "grant", "buffer": None, "why": "stale_generation"})
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

    def _size_up(self, trainer: Trainer, needed_bytes: int) -> None:
        """The size of the state is known: compute what this node may take, and say what does not fit."""
        budget = self._room.size_up(trainer.rank, needed_bytes)
        if budget is None:
            return
        for what, why in budget.refusals():
            if (what, self._room.generation) not in self._refusals_said:
                self._refusals_said.add((what, self._room.generation))
                self._tell(self._agent, {"kind": "degraded", "what": what, "why": f"no memory: {why}"})
        self._tell(
            self._agent, {"kind": "memory", "bound_bytes": budget.bound_bytes, "limit_bytes": budget.limit_bytes}
        )
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
            self._tell(self._agent, {"kind": "degraded", "what": "captures", "why": f"no memory: {error.strerror}"})
        trainer.owed = buffer is None
        if buffer is None:
            self._tell(trainer.sock, {"kind": "grant", "buffer": None, "why": why})
            return
        fresh = buffer.number not in trainer.known
        message = {"kind": "grant", "buffer": buffer.number, "bytes": buffer.capacity_bytes}
        if self._tell(trainer.sock, message, [buffer.fd] if fresh else None):
            trainer.known.add(buffer.number)

    def _pay_grants(self) -> None:
        for trainer in self._trainers.values():
            if trainer.owed and self._room.can_grant(trainer.rank):
                self._grant(trainer)

    def _trainer_left(self, trainer: Trainer | None) -> None:
        if trainer is None:
            return
        self._reactor.forget(trainer.sock)
        trainer.sock.close()
        self._stop_reading(trainer)
        if trainer in self._waiting:
            self._waiting.remove(trainer)
        if self._trainers.get(trainer.rank) is trainer:
            del self._trainers[trainer.rank]
            arena = self._room.arenas.get(trainer.rank)
            if arena is not None:
                arena.take_back()

    def _stop_reading(self, trainer: Trainer) -> None:
        if trainer.reading is not None:
            trainer.reading.let_go()
            trainer.reading = None

    # What goes out ---------------------------------------------------------------------------------------------

    def _tell_fact(self, kind: str, data: dict[str, Any]) -> None:
        if not self._tell(self._agent, {"kind": "fact", "type": kind, "data": data}):
            _log.warning("vault.fact_untold", type=kind, **data)

    def _flushed_to_disk(self, stored: DiskCopy) -> None:
        self._tell_fact(**stored.fact(self._room.node))

    def _dropped_from_disk(self, stored: DiskCopy, why: str) -> None:
        data = stored.fact(self._room.node)["data"]
        del data["digest"]
        self._tell_fact("checkpoint_dropped", {**data, "tier": "disk", "why": why})

    def _not_on_disk(self, step: int, why: str) -> None:
        self._tell(self._agent, {"kind": "degraded", "what": f"step {step} on disk", "why": why})

    def _tell_saved(self, sock: socket.socket, told: dict[str, Any]) -> None:
        self._tell(sock, {"kind": "saved", **told})

    def _tell_flushed(self) -> None:
        self._tell(self._agent, {"kind": "flushed"})

    def _compare(self, copy: Copy) -> None:
        """Give SCOUT the digests that must be equal on all peers, and which ranks' state is finite."""
        ranks = {}
        for rank, shard in sorted(copy.shards.items()):
            assert shard.digest is not None
            odd = shard.digest.nonfinite
            ranks[str(rank)] = {"digest": shard.digest.shared, "peers": shard.peers, "finite": odd is None}
            if odd is not None and self._nonfinite_said != copy.generation:
                self._nonfinite_said = copy.generation
                _log.warning("vault.nonfinite", step=copy.step, rank=rank, tensor=odd)
        told = {"generation": copy.generation, "step": copy.step, "ranks": ranks, "saved": self._room.is_saved(copy)}
        self._tell(self._agent, {"kind": "digests", **told})

    def _report_progress(self) -> None:
        newest, now = self._room.newest_captured(), time.monotonic()
        if newest is None or newest == self._progress:
            return
        if now - self._progress_at >= _PROGRESS_S:
            self._progress, self._progress_at = newest, now
            self._tell(self._agent, {"kind": "progress", "step": newest})

    # Replication -----------------------------------------------------------------------------------------------

    def _replicate_to(self, peers: list[Peer]) -> list[Sender]:
        """From here on copies go to these; returns the senders to those they did not go to before."""
        kept = [one for one in self._senders if one.peer in peers]
        for one in self._senders:
            if one not in kept:
                one.stop()
        known = {one.peer for one in kept}
        policy = self._policy
        fresh = [
            Sender(
                peer,
                self._run,
                self._secret,
                policy.transfer_timeout_s,
                policy.transfer_attempts,
                policy.chunk_bytes,
                lambda copy, why, node=peer.node: self._reactor.post(lambda: self._sent(copy, node, why)),  # type: ignore[misc]
            )
            for peer in peers
            if peer not in known
        ]
        self._senders = kept + fresh
        return fresh

    def _deliver(self, copy: Copy, then: Callable[[], None]) -> None:
        """Send a copy to every peer; `then` is called when each has it or never will."""
        self._replicate(copy)
        if copy.key in self._deliveries:
            self._when_delivered.setdefault(copy.key, []).append(then)
        else:
            then()

    def _replicate(self, copy: Copy, to: list[Sender] | None = None) -> None:
        """Send a copy to every peer, or to some."""
        for one in self._senders if to is None else to:
            copy.hold()
            self._deliveries[copy.key] = self._deliveries.get(copy.key, 0) + 1
            one.send(copy)

    def _sent(self, copy: Copy, node: str, why: str | None) -> None:
        copy.let_go()
        self._deliveries[copy.key] -= 1
        if not self._deliveries[copy.key]:
            del self._deliveries[copy.key]
            for then in self._when_delivered.pop(copy.key, []):
                then()
        if why is not None and why != "stopped" and not self._room.is_stale(copy.generation, copy.step):
            self._tell(
                self._agent,
                {"kind": "degraded", "what": f"replica of step {copy.step} on {node}", "why": why},
            )
        self._pay_grants()


def _peers(message: dict[str, Any]) -> list[Peer]:
    return [Peer(str(p["node"]), str(p["host"]), int(p["port"])) for p in message["replicate_to"]]
