"""Advice computed from a log: how many standbys, how often to checkpoint, how often to retry.

Each answer carries its formula, its source and the figures it was computed from, so that it can be argued with.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from lmr.engine.events import NodeJoined, PlanCommitted, RunOpened, TrainingResumed
from lmr.engine.record import Record

__all__ = [
    "Advice",
    "Observed",
    "checkpoint_interval",
    "observe",
    "retry_budget",
    "standby_pool",
]

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Advice:
    """One recommended value and what it rests on."""

    what: str
    value: int
    unit: str
    formula: str
    source: str
    figures: dict[str, int]


@dataclass(slots=True)
class Observed:
    """What a log says about how the run fails. Durations in ms."""

    run_ms: int = 0
    recoveries: int = 0
    nodes_replaced: int = 0
    repairs_ms: list[int] = field(default_factory=list)
    """From leaving a slot to joining with a new life."""
    recoveries_ms: list[int] = field(default_factory=list)
    restarts_in_place: int = 0
    """Plans that restarted a blamed node in place."""
    blamed_again: int = 0
    """Of these, followed by another incident of the same node within the blame window."""


def observe(records: Iterable[Record]) -> Observed:
    """Reads a run's records once, in order."""
    found = Observed()
    opened_ms = 0
    left_ms: dict[str, int] = {}
    restarted_ms: dict[str, int] = {}
    decided_ms: int | None = None
    window_ms = 3_600_000
    slots: dict[int, str] = {}
    for record in records:
        now, data = record.recorded_at_ms, record.event.data
        match data:
            case RunOpened():
                opened_ms = now
                window_ms = 1000 * int(data.policy.get("blame_window_s", 3_600))
            case NodeJoined() if data.node in left_ms:
                found.repairs_ms.append(now - left_ms.pop(data.node))
            case TrainingResumed() if decided_ms is not None:
                found.recoveries_ms.append(now - decided_ms)
                decided_ms = None
            case PlanCommitted() if data.plan.action in ("start", "restart", "replace"):
                plan = data.plan
                after = {a.slot: a.node for a in plan.assignments}
                if plan.action != "start":
                    found.recoveries += 1
                    decided_ms = now
                    gone = {name for slot, name in slots.items() if after.get(slot) != name}
                    found.nodes_replaced += len(gone)
                    left_ms.update(dict.fromkeys(gone, now))
                    for name in plan.cause.nodes:
                        if now - restarted_ms.pop(name, -window_ms - 1) <= window_ms:
                            found.blamed_again += 1
                        if name not in gone:
                            found.restarts_in_place += 1
                            restarted_ms[name] = now
                slots = after
            case _:
                pass
        found.run_ms = now - opened_ms
    return found


def standby_pool(observed: Observed, *, never_hold_pct: int, repair_ms: int | None = None) -> Advice:
    """The smallest pool that is not empty with the wanted probability when a node is needed.

    Args:
        observed: what the log says.
        never_hold_pct: wanted probability in percent, 1 to 99.
        repair_ms: time to repair or hand out a node; the log's median when absent, a day when it shows none.
    """
    repair = repair_ms if repair_ms is not None else _median(observed.repairs_ms, DAY_MS)
    run_ms = max(1, observed.run_ms)
    mean = observed.nodes_replaced * repair / run_ms
    pool, term = 0, math.exp(-mean)
    reached = term
    while reached < never_hold_pct / 100 and pool < 100_000:
        pool += 1
        term *= mean / pool
        reached += term
    return Advice(
        "standby pool",
        pool,
        "nodes",
        "smallest k with sum(i = 0..k) exp(-m) m^i / i! >= p, m = replacements per ms * repair ms",
        "Palm's theorem: nodes in repair are Poisson with mean rate * repair time (Palm 1938; Sherbrooke 1968)",
        {"replacements": observed.nodes_replaced, "run_ms": run_ms, "repair_ms": repair, "percent": never_hold_pct},
    )


def checkpoint_interval(observed: Observed, *, capture_ms: int) -> Advice:
    """The interval that balances the cost of captures against the work lost at a failure.

    Args:
        observed: what the log says.
        capture_ms: what one capture costs training.
    """
    between = observed.run_ms // max(1, observed.recoveries)
    interval = max(1, math.isqrt(2 * max(1, capture_ms) * max(1, between)))
    return Advice(
        "checkpoint interval",
        interval,
        "ms",
        "sqrt(2 * C * M), C = cost of a capture, M = mean time between failures",
        "Young 1974; Daly 2006, first order",
        {"capture_ms": capture_ms, "mean_between_failures_ms": between, "recoveries": observed.recoveries},
    )


def retry_budget(observed: Observed, *, sure_pct: int) -> Advice:
    """Restarts in place after which a fault that is still there is the machine's with the wanted certainty.

    Args:
        observed: what the log says.
        sure_pct: wanted certainty in percent, 1 to 99.
    """
    # One success and one failure are added, so that a short log does not claim certainty (Laplace).
    again, tried = observed.blamed_again + 1, observed.restarts_in_place + 2
    returns = min(again / tried, 0.999)
    budget = max(1, math.ceil(math.log(1 - sure_pct / 100) / math.log(returns)))
    return Advice(
        "retry budget",
        budget,
        "restarts",
        "smallest r with q^r <= 1 - p, q = (blamed again + 1) / (restarts in place + 2)",
        "geometric trials with Laplace's rule of succession; reattempt, then evict (ByteRobust)",
        {"blamed_again": observed.blamed_again, "restarts_in_place": observed.restarts_in_place, "percent": sure_pct},
    )


def _median(values: list[int], default: int) -> int:
    return sorted(values)[len(values) // 2] if values else default
