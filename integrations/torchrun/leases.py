"""Whom the decider hears, and from when on silence is a loss.

nobody may commit that cannot hear the generation: a decider that hears fewer than half of its nodes may itself be
what is cut off, and the others train on meanwhile (`peers.nobody_decides`), for a bounded time. Only after that
time it may believe that they are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from lmr.integrations.torchrun.peers import ALONE_S
from lmr.integrations.torchrun.roster import Roster
from lmr.integrations.torchrun.sessions import Session, Sessions

BELIEVE_S = ALONE_S + 5.0
"""Silence after which a decider without a majority believes in the loss: the others have stopped by then."""
KNOCK_S = 0.5


class Leases:
    """The leases of the run's nodes.

    Args:
        roster: who is in the run.
        sessions: who is connected.
        timeout_s: length of a lease.
        now: monotonic seconds; members that are not connected yet have one lease from here to come back.
    """

    def __init__(self, roster: Roster, sessions: Sessions, timeout_s: float, now: float) -> None:
        self._roster = roster
        self._sessions = sessions
        self._timeout_s = timeout_s
        self._began = now
        self._given_up: set[tuple[str, str]] = set()
        self._minority_at = float("-inf")

    def start_anew(self, now: float) -> None:
        """Nobody could be heard for a while, and that was not their fault."""
        self._began = now
        self._sessions.heard_now()

    def _silent_s(self, node: str, now: float) -> float:
        session = self._sessions.get(node)
        return now - (session.heard if session is not None else self._began)

    def _unheard(self, node: str, now: float) -> bool:
        """Half a lease: of nodes that went silent together, one is noticed first."""
        session = self._sessions.get(node)
        closed = session is not None and session.channel.writer.is_closing()
        return closed or self._silent_s(node, now) > self._timeout_s / 2

    def minority(self, now: float) -> bool:
        """Whether most of the generation cannot be heard. A lone node stops by itself when it is cut off."""
        active = self._roster.active()
        unheard = sum(self._unheard(node, now) for node in active)
        return len(active) > 1 and 2 * unheard > len(active)

    def alone(self, now: float) -> bool:
        """Whether half of the run's nodes, standbys included, cannot be heard: those may have another decider."""
        live = self._roster.live_nodes()
        heard = sum(not self._unheard(node, now) for node in live)
        return len(live) > 1 and 2 * heard <= len(live)

    def give_up(self, node: str, incarnation: str) -> bool:
        """This life is over, as the log will say in a moment. False when that was known."""
        known = (node, incarnation) in self._given_up
        self._given_up.add((node, incarnation))
        return not known

    def expired(self, now: float) -> Iterator[tuple[str, str]]:
        """Node and incarnation of every life that is to be given up."""
        if self.minority(now):
            self._minority_at = now
        # Nodes that trained on with a majority need a lease to notice that it has left them.
        believing = now - self._minority_at > self._timeout_s
        patience_s = self._timeout_s if believing else BELIEVE_S
        for node, seat in self._roster.seats.items():
            life = (node, seat.incarnation)
            if seat.live and life not in self._given_up and self._silent_s(node, now) > patience_s:
                yield life

    def silent_outsiders(self, now: float) -> list[Session]:
        """Connected agents that are no members (any more, or since the run closed) and say nothing."""
        return [
            session
            for session in self._sessions.values()
            if (self._roster.closed is not None or not self._roster.live(session.node, session.incarnation))
            and now - session.heard > self._timeout_s
        ]

    async def gone(self, session: Session) -> bool:
        """Whether a node whose link closed has no agent any more: its machine refuses connections to it.

        A link may also have been cut by the network. Then the node's lease decides: it stops its workers before that.
        """
        if self._roster.closed is not None:
            return True
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(session.address, session.peer_port), KNOCK_S)
            writer.close()
        except ConnectionRefusedError:
            return True
        except (OSError, asyncio.TimeoutError):
            pass
        return False
