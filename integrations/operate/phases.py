"""How long each phase of a recovery took, read from the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lmr.engine import Record, State, apply
from lmr.engine.events import GenerationStarted, PlanCommitted, RunClosed, StateRestored, TrainingResumed
from lmr.engine.plan import Plan

Outcome = Literal["resumed", "overtaken", "halted", "closed"]


@dataclass
class Recovery:
    """One recovery's times in Unix ms, by the log's clock; None where the log does not say (yet).

    Attributes:
        plan: what ended the incident: a restart, a replacement or a halt.
        detected_ms: when the incident opened, with its first actionable fact.
        held_ms: when training began to wait for a standby, if it had to.
        outcome: how it went on: training resumed, another plan came first, the run was halted, or closed otherwise.
        ended_ms: when.
    """

    plan: Plan
    detected_ms: int
    decided_ms: int
    held_ms: int | None = None
    workers_up_ms: int | None = None
    restored_ms: int | None = None
    first_step_ms: int | None = None
    outcome: Outcome | None = None
    ended_ms: int | None = None

    def since_detected(self) -> dict[str, int | None]:
        """Milliseconds from detection to each phase's end."""
        ends = {
            "decided": self.decided_ms,
            "workers up": self.workers_up_ms,
            "restored": self.restored_ms,
            "first step": self.first_step_ms,
        }
        return {name: None if end is None else end - self.detected_ms for name, end in ends.items()}

    def phases(self) -> list[tuple[str, int, int]]:
        """Each phase that is over: name, begin and end in Unix ms; `decide`, `hold`, `start`, `restore`, `step`."""
        marks = [
            ("decide", self.decided_ms if self.held_ms is None else self.held_ms),
            ("hold", None if self.held_ms is None else self.decided_ms),
            ("start", self.workers_up_ms),
            ("restore", self.restored_ms),
            ("step", self.first_step_ms),
        ]
        found, begin = [], self.detected_ms
        for name, end in marks:
            if end is not None:
                found.append((name, begin, max(begin, end)))
                begin = max(begin, end)
        return found


class RecoveryClock:
    """Times recoveries as records come. Memory does not grow with the log."""

    def __init__(self) -> None:
        self.current: Recovery | None = None
        self._detected_ms: int | None = None
        self._held_ms: int | None = None

    def take(self, record: Record, opened_ms: int | None) -> list[Recovery]:
        """Take the next record in.

        Args:
            record: the record.
            opened_ms: when the incident that was open just before it had opened; None when there was none.

        Returns:
            The recoveries that are over with it.
        """
        at_ms, current = record.recorded_at_ms, self.current
        match record.event.data:
            case PlanCommitted(plan=plan):
                return self._planned(plan, at_ms, opened_ms)
            case GenerationStarted(generation=generation) if self._is_of(generation):
                assert current is not None
                current.workers_up_ms = at_ms
            case StateRestored(generation=generation) if self._is_of(generation):
                assert current is not None
                current.restored_ms = at_ms
            case TrainingResumed(generation=generation) if self._is_of(generation):
                assert current is not None
                current.first_step_ms = at_ms
                return self._end("resumed", at_ms)
            case RunClosed():
                return self._end("closed", at_ms)
            case _:
                pass
        return []

    def _planned(self, plan: Plan, at_ms: int, opened_ms: int | None) -> list[Recovery]:
        over = self._end("overtaken", at_ms)
        detected_ms = self._detected_ms if self._detected_ms is not None else opened_ms
        if plan.action == "hold":
            self._detected_ms = detected_ms
            self._held_ms = at_ms if self._held_ms is None else self._held_ms
        elif plan.action in ("restart", "replace", "halt"):
            self.current = Recovery(plan, at_ms if detected_ms is None else detected_ms, at_ms, self._held_ms)
            self._detected_ms = self._held_ms = None
            if plan.action == "halt":
                over += self._end("halted", at_ms)
        return over

    def _is_of(self, generation: int) -> bool:
        return self.current is not None and self.current.plan.to_generation == generation

    def _end(self, outcome: Outcome, at_ms: int) -> list[Recovery]:
        current, self.current = self.current, None
        if current is None:
            return []
        current.outcome, current.ended_ms = outcome, at_ms
        return [current]


def opened_ms(state: State) -> int | None:
    """When the incident that is open now opened; None when there is none."""
    return None if state.incident is None else state.incident.opened_ms


def recoveries(records: Iterable[Record]) -> list[Recovery]:
    """Every recovery of a run, with its phases; the last one may still be going on."""
    state, clock = State(), RecoveryClock()
    found: list[Recovery] = []
    for record in records:
        before = opened_ms(state)
        apply(state, record)
        found += clock.take(record, before)
    return found if clock.current is None else [*found, clock.current]
