"""How long each phase of a recovery took, read from the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lmr.engine.events import GenerationStarted, PlanCommitted, StateRestored, TrainingResumed
from lmr.engine.plan import Plan
from lmr.engine.record import Record


@dataclass
class Recovery:
    """One recovery's times in Unix ms, by the log's clock; None where the log does not say."""

    plan: Plan
    detected_ms: int
    decided_ms: int
    workers_up_ms: int | None = None
    restored_ms: int | None = None
    first_step_ms: int | None = None

    def since_detected(self) -> dict[str, int | None]:
        """Milliseconds from detection to each phase's end."""
        ends = {
            "decided": self.decided_ms,
            "workers up": self.workers_up_ms,
            "restored": self.restored_ms,
            "first step": self.first_step_ms,
        }
        return {name: None if end is None else end - self.detected_ms for name, end in ends.items()}


def recoveries(records: Iterable[Record]) -> list[Recovery]:
    """Every restart and replacement of a run, with its phases. Keeps the time of every record in memory."""
    times: dict[int, int] = {}
    found: list[Recovery] = []
    for record in records:
        times[record.seq] = record.recorded_at_ms
        match record.event.data:
            case PlanCommitted(plan=plan) if plan.action in ("restart", "replace"):
                first = min((times[seq] for seq in plan.evidence if seq in times), default=record.recorded_at_ms)
                found.append(Recovery(plan, first, record.recorded_at_ms))
            case GenerationStarted(generation=generation) if _of(found, generation):
                found[-1].workers_up_ms = record.recorded_at_ms
            case StateRestored(generation=generation) if _of(found, generation):
                found[-1].restored_ms = record.recorded_at_ms
            case TrainingResumed(generation=generation) if _of(found, generation):
                found[-1].first_step_ms = record.recorded_at_ms
            case _:
                pass
    return found


def _of(found: list[Recovery], generation: int) -> bool:
    return bool(found) and found[-1].plan.to_generation == generation
