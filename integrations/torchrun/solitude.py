"""A node that hears nothing of its decider: is it cut off, or does nobody decide? Who is cut off stops its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from lmr.integrations.torchrun.clock import Clock
from lmr.integrations.torchrun.current import Current
from lmr.integrations.torchrun.link import Link
from lmr.integrations.torchrun.peers import ALONE_S, nobody_decides

HOST_GONE_S = 5.0
"""Connections to the decider refused for so long: its process is dead, and with it the embedded log."""
HOST_SILENT_S = 120.0
"""Silence that ends an agent even when the host's address still accepts: it is frozen for good."""
ASK_AGAIN_S = 0.1
PATIENT = 0.7
"""The part of a lease for which peers are asked again: one that is slow may have heard the decider a moment longer."""
SURE_OF_LEASE = 0.9
"""The part of a lease for which workers may count on it; the rest is for ending them."""


class Solitude:
    """Looks at the link now and then.

    Args:
        timeout_ms: the lease of a node.
        clock: the node's.
        secret: of the run; peers are asked with it.
        current: the latest word.
        spawn: runs a coroutine for as long as the node lives.
        excused: workers may go on without the decider, until `safe_until`.
        fence: stops this node's workers.
        host_gone: the decider's host is dead for good, and nobody can take over.
    """

    def __init__(
        self,
        timeout_ms: int,
        clock: Clock,
        secret: bytes,
        *,
        current: Callable[[], Current],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        excused: Callable[[], None],
        fence: Callable[[], None],
        host_gone: Callable[[], None],
    ) -> None:
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._secret = secret
        self._current = current
        self._spawn = spawn
        self._excused = excused
        self._fence = fence
        self._host_gone = host_gone
        self._link: Link | None = None
        self._asking = False
        self._excused_until = 0.0

    def follow(self, link: Link) -> None:
        """This is the link from here on."""
        self._link = link

    def safe_until(self) -> float:
        """When workers must end if nothing more is heard, this process included. Monotonic seconds."""
        heard = self._link.heard if self._link is not None else self._clock.monotonic()
        return max(heard + SURE_OF_LEASE * self._timeout_ms / 1000, self._excused_until)

    def silent_s(self) -> float:
        """For how long the decider has answered nothing."""
        return self._clock.monotonic() - self._link.heard if self._link is not None else 0.0

    def look(self, *, can_move: bool) -> None:
        """Act on silence.

        Args:
            can_move: another agent can take over from the decider.
        """
        if self._link is None:
            return
        silent_s = self.silent_s()
        gone = silent_s > HOST_SILENT_S or (self._link.refused_connections and silent_s > HOST_GONE_S)
        if gone and not can_move:
            self._host_gone()
        elif silent_s * 1000 > self._timeout_ms / 2 and not self._asking:
            self._asking = True
            self._spawn(self._ask())

    async def _ask(self) -> None:
        await self._fence_if_alone()
        await asyncio.sleep(ASK_AGAIN_S)
        self._asking = False

    async def _fence_if_alone(self) -> None:
        now, link = self._current(), self._link
        if now.orders is None or now.mine is None or now.displaced:
            return
        # Heartbeats are a sixth of a lease apart: a peer that lost the decider with this node is silent for a third.
        peer_silent_ms = self._timeout_ms // 4
        peers, answer_s, began = list(now.orders.peers), self._answer_s(), self._clock.monotonic()
        if self.silent_s() < ALONE_S and await nobody_decides(self._secret, peers, peer_silent_ms, answer_s):
            # Should somebody decide from now on, it gives every node a whole lease first.
            self._excused_until = began + self._timeout_ms / 1000
            self._excused()
            return
        if self._link is link and self.silent_s() * 1000 > PATIENT * self._timeout_ms:
            self._fence()

    def _answer_s(self) -> float:
        """How long peers may take: the first time until four fifths of the lease; later the others have been heard."""
        lease_s, silent_s = self._timeout_ms / 1000, self.silent_s()
        return 0.4 * lease_s if silent_s > lease_s else max(0.8 * lease_s - silent_s, 0.1 * lease_s)
