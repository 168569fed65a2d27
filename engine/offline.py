"""Decisions over facts alone: the engine run as if it had been there, without clock or database.

Time is the running maximum of the facts' `at_ms`. Due deadlines fire before a fact at or past the due time, and after
the last fact those due within ten seconds of it.
"""

from collections.abc import Iterable, Iterator

from lmr.engine.deadlines import next_deadline
from lmr.engine.events import DECISIONS, DeadlinePassed, Event, RunOpened
from lmr.engine.policy import RecoveryPolicy
from lmr.engine.record import Record, genesis_hash, seal
from lmr.engine.reduce import apply
from lmr.engine.settle import decision_id, settle_decisions
from lmr.engine.state import State

__all__ = ["decide_facts", "run_facts"]

AFTER_LAST_MS = 10_000
"""How long after the last fact deadlines still fire."""

Fact = Event | tuple[str, Event]
"""A fact, with its event id where it has one; a bare one is `line:N`."""


def decide_facts(facts: Iterable[Fact], *, policy: RecoveryPolicy | None = None) -> Iterator[tuple[int, Record]]:
    """The decisions that fall over the facts, each with the number of facts consumed before it.

    Args:
        facts: in log order; recorded decisions and deadlines among them are left out and made anew.
        policy: decide under this policy instead of the one the run was opened with.
    """
    for consumed, record in run_facts(facts, policy=policy):
        if record.event.type in DECISIONS:
            yield consumed, record


def run_facts(facts: Iterable[Fact], *, policy: RecoveryPolicy | None = None) -> Iterator[tuple[int, Record]]:
    """Every record of the log the facts make: facts, passed deadlines and decisions, sealed and chained."""
    run = _OfflineRun()
    consumed = 0
    for line, fact in enumerate(facts, 1):
        event_id, event = fact if isinstance(fact, tuple) else (f"line:{line}", fact)
        if event.type in DECISIONS or event.type == DeadlinePassed.type:
            continue
        if policy is not None and isinstance(event.data, RunOpened):
            data = event.data.model_copy(update={"policy": policy.table()})
            event = Event(event.type, event.at_ms, event.source, data)
        for record in run.pass_deadlines(event.at_ms):
            yield consumed, record
        consumed += 1
        for record in run.take(event, event_id):
            yield consumed, record
    for record in run.pass_deadlines(run.state.now_ms + AFTER_LAST_MS):
        yield consumed, record


class _OfflineRun:
    def __init__(self) -> None:
        self.state = State()
        self._run_id = ""

    def pass_deadlines(self, until_ms: int) -> Iterator[Record]:
        """Fires what is due until then, and what falls from it."""
        while (deadline := next_deadline(self.state)) is not None and deadline.due_ms <= until_ms:
            at_ms = max(self.state.now_ms, deadline.due_ms)
            event = Event.of(DeadlinePassed(deadline=deadline.id), at_ms=at_ms, source="decider")
            yield from self.take(event, decision_id(event))

    def take(self, event: Event, event_id: str) -> list[Record]:
        """Appends a fact, folds it, and commits what falls."""
        if isinstance(event.data, RunOpened) and not self._run_id:
            self._run_id = event.data.run_id
        record = self._append(event, event_id)
        apply(self.state, record)
        return [record, *settle_decisions(self.state, self._append)]

    def _append(self, event: Event, event_id: str) -> Record:
        state = self.state
        return seal(
            event,
            run_id=self._run_id,
            seq=state.seq + 1,
            event_id=event_id,
            recorded_at_ms=max(state.now_ms, event.at_ms),
            epoch=0,
            prev_hash=state.head_hash or genesis_hash(self._run_id),
        )
