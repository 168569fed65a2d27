"""Has this node's shard of the step a plan restores at hand, verified: from memory here, a peer, or disk.

What is in memory here comes first, whatever the plan names, because it costs nothing to look. The plan's own source is
next, and only its failure is reported: the plan that follows names the next one, so every rung taken is in the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import structlog

from lmr.integrations.gemini import finite
from lmr.integrations.gemini.checkpoint_policy import CheckpointPolicy
from lmr.integrations.gemini.digest import ShardDigest
from lmr.integrations.gemini.errors import ShardMismatch
from lmr.integrations.gemini.vault import sender
from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.gemini.vault.disk import DiskCopy
from lmr.integrations.gemini.vault.hasher import cores
from lmr.integrations.gemini.vault.memory import Buffer
from lmr.integrations.gemini.vault.reactor import Reactor
from lmr.integrations.gemini.vault.room import Room
from lmr.integrations.gemini.vault.transfer import CopyHeader, Peer

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Origin:
    """Where a shard was really taken from."""

    holder: str
    tier: str


class _Unusable(Exception):
    """A copy on this node's disk cannot be read."""

    def __init__(self, mismatch: ShardMismatch, stored: DiskCopy) -> None:
        super().__init__(str(mismatch))
        self.mismatch = mismatch
        self.stored = stored


class Restorer:
    """Prepares one restore at a time; all but the fetching runs on the reactor's thread.

    Args:
        run: the run's id.
        policy: patience with peers.
        reactor: whose thread it is.
        room: the copies.
        secret: the run's secret as it is now.
        ready: called when the slot's copy is here and verified; with None when it is in a durable checkpoint.
        failed: called with step, slot, the source that failed, and why.
    """

    def __init__(
        self,
        run: str,
        policy: CheckpointPolicy,
        reactor: Reactor,
        room: Room,
        secret: Callable[[], bytes],
        ready: Callable[[Copy | None, Origin], None],
        failed: Callable[[int, int, Origin, str], None],
    ) -> None:
        self._run = run
        self._policy = policy
        self._reactor = reactor
        self._room = room
        self._secret = secret
        self._ready = ready
        self._failed = failed
        self._source: dict[str, Any] = {}

    def begin(self, step: int, slot: int, source: dict[str, Any]) -> None:
        """Prepare a slot's copy of a step.

        Args:
            step: to restore.
            slot: of this node.
            source: what the plan names: `holder` and `tier`, and `host` and `port` of another node's vault.
        """
        self._source = source
        if source.get("tier") == "durable":
            self._ready(None, Origin(str(source["holder"]), "durable"))  # trainers read it themselves
            return
        copy = self._room.find(step, slot)
        if copy is None:
            self._from_source(step, slot)
        else:
            self._verify(self._room.generation, copy)

    def _verify(self, generation: int, copy: Copy) -> None:
        """Memory may have been damaged since it was measured: measure again before anybody loads it."""

        def check(copy: Copy, digests: dict[int, ShardDigest], slot_digest: str) -> None:
            if generation != self._room.generation:
                return
            if tuple(sorted(copy.ranks)) != tuple(sorted(self._room.ranks)):
                self._fail(copy.step, copy.slot, "topology_mismatch", f"the copy is of ranks {copy.ranks}")
            elif slot_digest != copy.digest:
                wrong = [rank for rank, found in digests.items() if found != copy.shards[rank].digest]
                _log.error("vault.damaged_in_memory", step=copy.step, slot=copy.slot, tier=copy.tier, ranks=wrong)
                named = self._here and self._source.get("tier") != "disk"
                if named:  # first say that this copy failed, then that it is gone
                    self._fail(copy.step, copy.slot, "digest_mismatch", f"damaged in memory: ranks {wrong}")
                self._room.drop(copy, "digest_mismatch")
                if not named:
                    self._from_source(copy.step, copy.slot)
            elif (odd := first_odd({rank: found.nonfinite for rank, found in digests.items()})) is not None:
                self._fail(copy.step, copy.slot, "nonfinite", odd)
            else:
                self._make_readable(generation, copy)

        self._room.measure(copy, check)

    def _make_readable(self, generation: int, copy: Copy) -> None:
        """A trainer maps the shard itself: what it shares with others has to be copied first."""
        origin = Origin(self._room.node, copy.tier)
        shared = [shard.buffer for shard in copy.shards.values() if shard.buffer.overlaid]
        if not shared:
            self._ready(copy, origin)
            return
        copy.hold()

        def work() -> None:
            sources, why = [], ""
            try:
                for buffer in shared:
                    sources += buffer.settle()
            except OSError as error:
                why = f"no memory to restore into: {error.strerror}"
            self._reactor.post(lambda: done(sources, why))

        def done(sources: list[Buffer], why: str) -> None:
            copy.let_go()
            for source in sources:
                source.let_go()
            if generation != self._room.generation:
                return
            if why:
                self._fail(copy.step, copy.slot, "missing", why)
            else:
                self._ready(copy, origin)

        threading.Thread(target=work, name="settle", daemon=True).start()

    @property
    def _here(self) -> bool:
        return bool(self._source.get("holder", self._room.node) == self._room.node)

    def _from_source(self, step: int, slot: int) -> None:
        generation, stored = self._room.generation, self._room.arrivals.on_disk(step, slot)
        host, port = self._source.get("host"), self._source.get("port")
        if self._here:
            if self._source.get("tier") != "disk" or stored is None:
                self._fail(step, slot, "missing", "no copy here")
                return
            found = stored

            def get() -> tuple[CopyHeader, dict[int, Buffer]]:
                return self._read(found)
        elif host is None or port is None:
            self._fail(step, slot, "missing", "no copy here and no address to fetch one from")
            return
        else:
            peer = Peer(str(self._source["holder"]), str(host), int(port))

            def get() -> tuple[CopyHeader, dict[int, Buffer]]:
                return self._fetch(peer, step, slot)

        threading.Thread(target=self._get, args=(generation, step, slot, get), name="fetch", daemon=True).start()

    # On a thread of its own ------------------------------------------------------------------------------------

    def _get(
        self, generation: int, step: int, slot: int, get: Callable[[], tuple[CopyHeader, dict[int, Buffer]]]
    ) -> None:
        try:
            header, buffers = get()
            with ThreadPoolExecutor(cores(), "finite") as pool:
                odd = first_odd(
                    {
                        rank: finite.first_nonfinite(buffers[rank].memory, meta, pool.map)
                        for rank, (meta, _, _) in header.shards.items()
                    }
                )
        except _Unusable as error:
            mismatch, stored = error.mismatch, error.stored
            self._reactor.post(lambda: self._got_unusable(generation, mismatch, stored))
            return
        except ShardMismatch as error:
            why, detail = error.why, error.detail
        except Exception as error:  # noqa: BLE001  a thread's edge: the agent must hear of it
            why, detail = "timeout", repr(error)
        else:
            self._reactor.post(lambda: self._got(generation, header, buffers, odd))
            return
        self._reactor.post(lambda: self._got_nothing(generation, step, slot, why, detail))

    def _fetch(self, peer: Peer, step: int, slot: int) -> tuple[CopyHeader, dict[int, Buffer]]:
        policy = self._policy
        return sender.fetch(
            peer,
            self._run,
            self._secret(),
            step,
            slot,
            policy.transfer_timeout_s,
            policy.transfer_attempts,
            lambda header: self._reactor.ask(lambda: self._room.arrivals.allocate(header)),
        )

    def _read(self, stored: DiskCopy) -> tuple[CopyHeader, dict[int, Buffer]]:
        header = stored.header
        buffers = self._reactor.ask(lambda: self._room.arrivals.allocate(header))
        memories = {rank: buffers[rank].memory[: meta.total_bytes] for rank, (meta, _, _) in header.shards.items()}
        try:
            stored.read_into(memories)
        except BaseException as error:
            memories.clear()
            self._reactor.post(lambda: self._room.arrivals.abandon(buffers))
            if isinstance(error, ShardMismatch):
                raise _Unusable(error, stored) from error
            raise
        memories.clear()
        return header, buffers

    # On the reactor's thread again -----------------------------------------------------------------------------

    def _got_unusable(self, generation: int, mismatch: ShardMismatch, stored: DiskCopy) -> None:
        """First say that this copy failed, then that it is gone."""
        self._got_nothing(generation, stored.header.step, stored.header.slot, mismatch.why, mismatch.detail)
        if self._room.disk is not None:
            self._room.disk.drop(stored, mismatch.why)

    def _got(self, generation: int, header: CopyHeader, buffers: dict[int, Buffer], odd: str | None) -> None:
        if generation != self._room.generation:
            self._room.arrivals.abandon(buffers)
        elif tuple(sorted(header.shards)) != tuple(sorted(self._room.ranks)):
            self._room.arrivals.abandon(buffers)
            ranks = sorted(header.shards)
            self._fail(header.step, header.slot, "topology_mismatch", f"the copy is of ranks {ranks}")
        elif odd is not None:
            self._room.arrivals.abandon(buffers)
            self._fail(header.step, header.slot, "nonfinite", odd)
        else:
            origin = Origin(str(self._source["holder"]), str(self._source["tier"]))
            self._ready(self._room.add(header, buffers), origin)

    def _got_nothing(self, generation: int, step: int, slot: int, why: str, detail: str) -> None:
        if generation == self._room.generation:
            self._fail(step, slot, why, detail)

    def _fail(self, step: int, slot: int, why: str, detail: str) -> None:
        origin = Origin(str(self._source.get("holder", self._room.node)), str(self._source.get("tier", "memory")))
        _log.warning(
            "vault.restore_failed", step=step, slot=slot, why=why, detail=detail, holder=origin.holder, tier=origin.tier
        )
        self._failed(step, slot, origin, why)


def first_odd(nonfinite: dict[int, str | None]) -> str | None:
    """The first rank with a tensor that should be finite and is not."""
    return next((f"rank {rank}: {name} is not finite" for rank, name in sorted(nonfinite.items()) if name), None)
