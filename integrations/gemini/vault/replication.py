"""Which vaults this one's copies go to, and when each of them has one. Runs on the reactor's thread only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmr.integrations.gemini.checkpoint_policy import CheckpointPolicy
from lmr.integrations.gemini.vault.copies import Copy, Key
from lmr.integrations.gemini.vault.reactor import Reactor
from lmr.integrations.gemini.vault.room import Room
from lmr.integrations.gemini.vault.sender import Sender
from lmr.integrations.gemini.vault.transfer import Peer


class Replication:
    """A sender for each peer, and the deliveries that are on their way.

    Args:
        run: the run's id.
        policy: sizes, counts and times.
        reactor: hears of the ends of deliveries.
        room: says which copies are of an undone past, and hears that memory may have become free.
        secret: the run's secret as it is now.
        tell_agent: hears which copy did not get where it should.
    """

    def __init__(
        self,
        run: str,
        policy: CheckpointPolicy,
        reactor: Reactor,
        room: Room,
        secret: Callable[[], bytes],
        tell_agent: Callable[[dict[str, Any]], object],
    ) -> None:
        self._run = run
        self._policy = policy
        self._reactor = reactor
        self._room = room
        self._secret = secret
        self._tell_agent = tell_agent
        self._senders: list[Sender] = []
        self._deliveries: dict[Key, int] = {}
        self._when_delivered: dict[Key, list[Callable[[], None]]] = {}

    def go_to(self, peers: list[Peer]) -> list[Sender]:
        """From here on copies go to these; returns the senders to those they did not go to before."""
        kept = [one for one in self._senders if one.peer in peers]
        for one in self._senders:
            if one not in kept:
                one.stop()
        known = {one.peer for one in kept}
        fresh = [self._sender(peer) for peer in peers if peer not in known]
        self._senders = kept + fresh
        return fresh

    def _sender(self, peer: Peer) -> Sender:
        return Sender(
            peer,
            self._run,
            self._secret(),
            self._policy.transfer_timeout_s,
            self._policy.transfer_attempts,
            self._policy.chunk_bytes,
            lambda copy, why: self._reactor.post(lambda: self._sent(copy, peer.node, why)),
        )

    def send(self, copy: Copy, to: list[Sender] | None = None) -> None:
        """Send a copy to every peer, or to some."""
        for one in self._senders if to is None else to:
            copy.hold()
            self._deliveries[copy.key] = self._deliveries.get(copy.key, 0) + 1
            one.send(copy)

    def deliver(self, copy: Copy, then: Callable[[], None]) -> None:
        """Send a copy to every peer; `then` is called when each has it or never will."""
        self.send(copy)
        if copy.key in self._deliveries:
            self._when_delivered.setdefault(copy.key, []).append(then)
        else:
            then()

    def _sent(self, copy: Copy, node: str, why: str | None) -> None:
        copy.let_go()
        self._deliveries[copy.key] -= 1
        if not self._deliveries[copy.key]:
            del self._deliveries[copy.key]
            for then in self._when_delivered.pop(copy.key, []):
                then()
        if why is not None and why != "stopped" and not self._room.is_stale(copy.generation, copy.step):
            self._tell_agent({"kind": "degraded", "what": f"replica of step {copy.step} on {node}", "why": why})
        self._room.freed()
