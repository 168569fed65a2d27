"""The vault's conversation with its agent, and what belongs together in a vault."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import structlog

from lmr.integrations.gemini.checkpoint_policy import CheckpointPolicy
from lmr.integrations.gemini.vault import disk
from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.gemini.vault.disk import DiskCopy, DiskTier
from lmr.integrations.gemini.vault.hasher import Hasher
from lmr.integrations.gemini.vault.messages import read, tell
from lmr.integrations.gemini.vault.reactor import Reactor
from lmr.integrations.gemini.vault.replication import Replication
from lmr.integrations.gemini.vault.restoring import Origin, Restorer
from lmr.integrations.gemini.vault.room import Room
from lmr.integrations.gemini.vault.saving import Saver
from lmr.integrations.gemini.vault.server import Server
from lmr.integrations.gemini.vault.stock import take_stock
from lmr.integrations.gemini.vault.trainers import Trainers
from lmr.integrations.gemini.vault.transfer import Peer
from lmr.integrations.torchrun import local_socket

_log = structlog.get_logger(__name__)


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
            lambda copy: self._replication.send(copy),
            lambda: self._trainers.pay_grants(),
        )
        self._trainers = Trainers(self._reactor, self._room, self._tell_agent)
        self._replication = Replication(run, policy, self._reactor, self._room, lambda: self._secret, self._tell_agent)
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
        self._saver = Saver(self._room, self._replication.deliver)
        self._ending = False
        self._nonfinite_said = -1
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
        message = read(sock)
        if message is None or message.get("kind") != "hello":
            sock.close()
        elif message.get("role") == "agent":
            self._adopt(sock, message.get("secret"))
        elif message.get("role") == "trainer":
            self._trainers.greet(sock, int(message["rank"]), int(message["generation"]))
        else:
            sock.close()

    # The agent -------------------------------------------------------------------------------------------------

    def _adopt(self, sock: socket.socket, secret: str | None) -> None:
        """An agent that comes back may have been given another secret meanwhile."""
        if secret is not None:
            self._secret = self._server.secret = bytes.fromhex(secret)
        if self._agent is not None:
            self._agent_left(self._agent)
        self._agent, self._orphaned_since = sock, None
        self._reactor.watch(sock, lambda: self._hear_agent(sock))
        tell(sock, {"kind": "ready", "port": self._server.port, "pid": os.getpid()})
        take_stock(self._room, lambda held: self._tell_held(sock, held))

    def _tell_agent(self, message: dict[str, Any]) -> bool:
        return tell(self._agent, message)

    def _tell_held(self, sock: socket.socket, held: list[dict[str, Any]]) -> None:
        tell(sock, {"kind": "held", "copies": held})

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
        message = read(sock)
        if message is None:
            self._agent_left(sock)
            return
        kind = message.get("kind")
        if kind == "generation":
            self._enter(message)
        elif kind == "load":
            if int(message["generation"]) == self._room.generation:
                self._trainers.may_load()
        elif kind == "replicate_to":
            fresh = self._replication.go_to(_peers(message))
            for copy in filter(self._room.is_retained, self._room.own_published()):
                self._replication.send(copy, fresh)
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
        self._trainers.send_away(generation)
        ranks = [int(rank) for rank in message.get("ranks", [])]
        self._room.enter(generation, slot, ranks, step, str(message.get("history", "")))
        self._room.head = message.get("head") or None
        self._replication.go_to(_peers(message))
        if slot is not None and step > 0 and not message.get("loaded"):
            source: dict[str, Any] = next((s for s in checkpoint.get("sources", []) if s["slot"] == slot), {})
            self._restorer.begin(step, int(slot), source)

    # Restoring -------------------------------------------------------------------------------------------------

    def _ready_to_load(self, copy: Copy | None, origin: Origin) -> None:
        step = self._room.restored_step
        told = {"generation": self._room.generation, "step": step, "tier": origin.tier}
        self._tell_agent({"kind": "restorable", **told})
        if copy is not None:
            self._replication.send(
                copy
            )  # peers that hold it already say so; the others have just joined or lost theirs
        self._trainers.restorable(origin)

    def _restore_failed(self, step: int, slot: int, origin: Origin, why: str) -> None:
        self._tell_agent(
            {
                "kind": "restore_failed",
                "generation": self._room.generation,
                "step": step,
                "slot": slot,
                "holder": origin.holder,
                "tier": origin.tier,
                "why": why,
            }
        )

    # What goes out ---------------------------------------------------------------------------------------------

    def _tell_fact(self, kind: str, data: dict[str, Any]) -> None:
        if not self._tell_agent({"kind": "fact", "type": kind, "data": data}):
            _log.warning("vault.fact_untold", type=kind, **data)

    def _flushed_to_disk(self, stored: DiskCopy) -> None:
        self._tell_fact(**stored.fact(self._room.node))

    def _dropped_from_disk(self, stored: DiskCopy, why: str) -> None:
        data = stored.fact(self._room.node)["data"]
        del data["digest"]
        self._tell_fact("checkpoint_dropped", {**data, "tier": "disk", "why": why})

    def _not_on_disk(self, step: int, why: str) -> None:
        self._tell_agent({"kind": "degraded", "what": f"step {step} on disk", "why": why})

    def _tell_saved(self, sock: socket.socket, told: dict[str, Any]) -> None:
        tell(sock, {"kind": "saved", **told})

    def _tell_flushed(self) -> None:
        self._tell_agent({"kind": "flushed"})

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
        self._tell_agent({"kind": "digests", **told})


def _peers(message: dict[str, Any]) -> list[Peer]:
    return [Peer(str(p["node"]), str(p["host"]), int(p["port"])) for p in message["replicate_to"]]
