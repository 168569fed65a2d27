"""The same facts through today's rules: what another policy, or a missing fact, would have made of them.

A `Replay` folds records into a state of its own and takes every decision itself. Its records are numbered anew, because
left-out facts leave no gap; `origin` says which recorded seq each one came from.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from lmr.engine import decision_id
from lmr.engine.deadlines import Deadline, next_deadline
from lmr.engine.decide import decide
from lmr.engine.events import DeadlinePassed, Event, PlanCommitted, PolicyChanged, RunClosed, RunOpened
from lmr.engine.plan import Plan
from lmr.engine.policy import RecoveryPolicy
from lmr.engine.record import Record
from lmr.engine.reduce import apply
from lmr.engine.state import State

WAITED_FOR = ("settle", "confirm", "place")
"""Deadlines that only wait for facts to come together; running them out invents nothing but silence."""


@dataclass(frozen=True)
class Effect:
    """What a decision does to the run. Two decisions with equal effects leave the same future open."""

    type: str
    action: str
    slots: tuple[tuple[int, str], ...] = ()
    step: int | None = None
    quarantined: tuple[str, ...] = ()
    reason: str | None = None

    @classmethod
    def of(cls, event: Event) -> Effect:
        """The effect of a plan or of the end of the run."""
        data = event.data
        if isinstance(data, RunClosed):
            return cls("run_closed", data.outcome, reason=data.reason)
        assert isinstance(data, PlanCommitted)
        plan = data.plan
        return cls(
            "plan_committed",
            plan.action,
            tuple(sorted((item.slot, item.node) for item in plan.assignments)),
            plan.checkpoint.step if plan.checkpoint else None,
            tuple(sorted(plan.quarantined)),
            plan.reason if plan.action == "halt" else None,
        )


def told_apart(wanted: Effect, other: Effect) -> str:
    """What sets `other` apart where both would be told in the same words: who takes which slot, who stays out."""
    before, out, still = dict(wanted.slots), set(wanted.quarantined), set(other.quarantined)
    moved = [(slot, node) for slot, node in other.slots if before.get(slot, node) != node]
    parts = [f"slot {slot} to {node} instead of {before[slot]}" for slot, node in moved]
    parts += [f"{name} quarantined too" for name in sorted(still - out)]
    parts += [f"{name} not quarantined" for name in sorted(out - still)]
    return "; ".join(parts)


class Origin:
    """Recorded seq of each record by its new seq; 0 where a replay decided. Grows with what was left out or decided."""

    def __init__(self) -> None:
        self.length = 0
        self._first: list[int] = []
        """New seqs at which a stretch of records that follow one another begins ..."""
        self._recorded: list[int] = []
        """... and what the first of each was recorded as."""

    def append(self, recorded: int) -> None:
        """The next new seq was `recorded`."""
        self.length += 1
        if self._first and self._recorded[-1]:
            follows = recorded == self._recorded[-1] + self.length - self._first[-1]
        else:
            follows = bool(self._first) and not recorded
        if not follows:
            self._first.append(self.length)
            self._recorded.append(recorded)

    def of(self, seq: int) -> int:
        """What `seq` was recorded as; 0 when it was not, or is none of this replay's."""
        if not 0 < seq <= self.length:
            return 0
        at = bisect_right(self._first, seq) - 1
        return self._recorded[at] and self._recorded[at] + seq - self._first[at]

    def copy(self) -> Origin:
        """An independent one."""
        other = Origin()
        other.length, other._first, other._recorded = self.length, self._first[:], self._recorded[:]
        return other


class Replay:
    """A state that decides for itself.

    Args:
        policy: decide under this instead of what the log's own events say.
    """

    def __init__(self, policy: RecoveryPolicy | None = None) -> None:
        self.state = State()
        self.policy = policy
        self.origin = Origin()
        self.hold_decisions = False
        """True: recorded decisions are folded as they are, nothing is decided."""

    def copy(self) -> Replay:
        """An independent replay at the same point."""
        other = Replay(self.policy)
        other.state = copy.deepcopy(self.state)
        other.origin = self.origin.copy()
        return other

    def take(self, record: Record) -> list[Event]:
        """Folds one recorded fact; returns the decisions that fall with it."""
        event = record.event
        if self.policy is not None and isinstance(event.data, RunOpened | PolicyChanged):
            event = under_policy(event, self.policy)
        if event is record.event and record.seq == self.state.seq + 1:
            self.origin.append(record.seq)
            apply(self.state, record)  # as it is: nothing was left out before it
        else:
            self._fold(event, record.event_id, record.recorded_at_ms, record.seq)
        return self.settle()

    def force(self, record: Record) -> None:
        """Folds one recorded decision as it was recorded."""
        self._fold(record.event, record.event_id, record.recorded_at_ms, record.seq)

    def settle(self) -> list[Event]:
        """Takes every decision that is due now."""
        taken: list[Event] = []
        while not self.hold_decisions and (event := decide(self.state)) is not None:
            self._fold(event, decision_id(event), self.state.now_ms, 0)
            taken.append(event)
        return taken

    def pass_deadline(self, deadline: Deadline) -> list[Event]:
        """Lets `deadline` pass; returns the decisions that fall with it."""
        at_ms = max(deadline.due_ms, self.state.now_ms)
        event = Event.of(DeadlinePassed(deadline=deadline.id), at_ms=at_ms, source="decider")
        self._fold(event, f"deadline:{deadline.id}", at_ms, 0)
        return self.settle()

    def next_deadline(self) -> Deadline | None:
        """The deadline the state waits for."""
        return next_deadline(self.state)

    def run_out(self) -> list[Event]:
        """Lets the deadlines pass that wait for facts to come together, as if no more came, until a decision falls."""
        while (deadline := self.next_deadline()) is not None and deadline.id.partition(":")[0] in WAITED_FOR:
            taken = self.pass_deadline(deadline)
            if taken:
                return taken
        return []

    def evidence(self, plan: Plan) -> tuple[int, ...]:
        """The recorded seqs that `plan`, decided here, cites."""
        return tuple(seq for seq in map(self.origin.of, plan.evidence) if seq)

    def _fold(self, event: Event, event_id: str, recorded_at_ms: int, origin: int) -> None:
        seq = self.state.seq + 1
        self.origin.append(origin)
        apply(self.state, Record(self.state.run_id, seq, event_id, 1, recorded_at_ms, 0, event, b"", "", ""))


def under_policy(event: Event, policy: RecoveryPolicy) -> Event:
    """`event` (`run_opened` or `policy_changed`) with this policy in place of its own."""
    assert isinstance(event.data, RunOpened | PolicyChanged)
    data: Any = event.data.model_copy(update={"policy": policy.table()})
    return Event(event.type, event.at_ms, event.source, data)
