"""The shell's half of the loop: commit every decision that is due, in the transaction that appended the fact."""

from collections.abc import Callable

from lmr.engine.decide import decide
from lmr.engine.errors import FoldMisused
from lmr.engine.events import DeadlinePassed, Event, PlanCommitted, RunClosed
from lmr.engine.record import Record
from lmr.engine.reduce import apply
from lmr.engine.state import State

Append = Callable[[Event, str], Record | None]
"""Appends an event under an event id; None when the log has it already."""


def decision_id(event: Event) -> str:
    """The event id of a decision or a passed deadline: `plan:ID`, `deadline:ID`, `closed:OUTCOME` (a run closes once).

    Raises:
        FoldMisused: the event is a fact.
    """
    data = event.data
    if isinstance(data, PlanCommitted):
        return f"plan:{data.plan.plan_id}"
    if isinstance(data, DeadlinePassed):
        return f"deadline:{data.deadline}"
    if isinstance(data, RunClosed):
        return f"closed:{data.outcome}"
    raise FoldMisused(f"{event.type} is a fact: its id comes from its observer")


def settle_decisions(state: State, append: Append) -> list[Record]:
    """Commits and folds decisions until none is due; returns their records."""
    records: list[Record] = []
    while (decision := decide(state)) is not None:
        record = append(decision, decision_id(decision))
        if record is None:
            raise FoldMisused(f"the log has {decision.type} already, but this state does not")
        apply(state, record)
        records.append(record)
    return records
