"""Who is in the run, as the committed records say: what admission and leases look at.

A fold like the engine's, of the few things the link needs. It decides nothing about recovery.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lmr.engine.events import (
    ConfigDrifted,
    NodeCordoned,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeUncordoned,
    PlanCommitted,
    RunClosed,
    RunOpened,
    RunReopened,
)
from lmr.engine.plan import Plan
from lmr.engine.record import Record


@dataclass
class Seat:
    """One node as last seen."""

    incarnation: str
    live: bool
    lives: set[str] = field(default_factory=set)


@dataclass
class Roster:
    """Seats, the latest plan, and how the run ended."""

    opened: RunOpened | None = None
    seats: dict[str, Seat] = field(default_factory=dict)
    plan: Plan | None = None
    out: set[str] = field(default_factory=set)
    """Nodes the next plan would not place: quarantined, cordoned or drifted."""
    closed: RunClosed | None = None

    def fold(self, record: Record) -> None:
        """Take one committed record in."""
        match record.event.data:
            case RunOpened() as opened:
                self.opened = opened
            case RunReopened():
                for seat in self.seats.values():
                    seat.live = False
                self.closed = None
            case NodeJoined(node=node, incarnation=incarnation):
                lives = self.seats[node].lives if node in self.seats else set()
                self.seats[node] = Seat(incarnation, live=True, lives=lives | {incarnation})
                self.out.discard(node)
            case NodeLeft(node=node, incarnation=incarnation) | NodeLost(node=node, incarnation=incarnation):
                if self.live(node, incarnation):
                    self.seats[node].live = False
            case NodeCordoned(node=node) | ConfigDrifted(node=node):
                self.out.add(node)
            case NodeUncordoned(node=node):
                self.out.discard(node)
            case PlanCommitted(plan=plan):
                self.plan = plan
                self.out = self.live_nodes() - {*self.active(), *plan.standby}
            case RunClosed() as closed:
                self.closed = closed
            case _:
                pass

    @property
    def generation(self) -> int:
        """The worker group's current generation; -1 before the first plan."""
        return self.plan.to_generation if self.plan is not None else -1

    def active(self) -> dict[str, str]:
        """Nodes of the current generation and their incarnations."""
        return {a.node: a.incarnation for a in self.plan.assignments} if self.plan is not None else {}

    def live(self, node: str, incarnation: str) -> bool:
        """Whether this life of the node is in the run."""
        seat = self.seats.get(node)
        return seat is not None and seat.live and seat.incarnation == incarnation

    def live_nodes(self) -> set[str]:
        """Nodes whose seats are taken."""
        return {node for node, seat in self.seats.items() if seat.live}
