"""Deadlines: what the state waits for, and until when.

The engine knows no clock. It names its deadlines; the shell appends `deadline_passed` once one is due.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from lmr.engine.state import STALLS, Generation, Incident, State


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """One awaited moment. The id is unique in a run."""

    due_ms: int
    id: str


def next_deadline(state: State) -> Deadline | None:
    """The earliest deadline the state waits for, None when it waits for none."""
    return min(deadlines(state), default=None)


def deadlines(state: State) -> Iterator[Deadline]:
    """All deadlines the state waits for."""
    if state.closed is not None or state.opened_ms is None or (state.plan is not None and state.plan.action == "halt"):
        return
    if state.generation is None:
        if state.enough_seq is not None and not state.placing_passed:
            yield Deadline(state.enough_ms + state.policy.settle_ms, f"place:{state.enough_seq}")
        return
    if state.hold is not None:
        if state.hold_passed_seq is None:
            yield Deadline(state.hold.since_ms + state.policy.standby_wait_s * 1000, f"hold:{state.hold.plan_seq}")
        return
    if state.incident is not None:
        yield from _incident_deadlines(state, state.incident)
    yield from _generation_deadlines(state, state.generation)


def settle_due_ms(state: State, incident: Incident) -> int:
    """When the facts have settled: `settle_ms` after the first, one detector period for a stall alone."""
    policy = state.policy
    stall = [ms + policy.stall_settle_ms for kind, ms in incident.first_ms.items() if kind in STALLS]
    other = [ms + policy.settle_ms for kind, ms in incident.first_ms.items() if kind not in STALLS]
    return min(stall + other)


def _incident_deadlines(state: State, incident: Incident) -> Iterator[Deadline]:
    if incident.settled_seq is None:
        yield Deadline(settle_due_ms(state, incident), f"settle:{incident.number}")
    elif incident.only_echoes and incident.waited_seq is None and incident.awaiting:
        yield Deadline(incident.first_ms["echo"] + state.policy.lease_ms, f"confirm:{incident.number}")


def _generation_deadlines(state: State, generation: Generation) -> Iterator[Deadline]:
    start, restore = f"start:{generation.number}", f"restore:{generation.number}"
    if generation.all_started_ms is None:
        if start not in generation.passed:
            yield Deadline(generation.planned_ms + state.policy.start_s * 1000, start)
    elif generation.resumed_ms is None and generation.number > 0 and restore not in generation.passed:
        yield Deadline(generation.all_started_ms + state.policy.restore_s * 1000, restore)
