"""`simulate`: published failure statistics through the engine, to tune policy and size standbys beforehand.

Failures arrive at the profile's rate for the asked number of nodes and days; the engine decides each on a small fleet
that stands for the large one. What differs between policies is what the engine does. What differs between pool sizes is
how often a replacement finds the pool empty: replacements arrive by Poisson, each takes a standby until its machine is
repaired, so the number under repair is Poisson with mean rate times repair time (Palm's theorem, M/G/infinity), and a
replacement holds when the pool's size or more are under repair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmr.engine.campaign import PROFILES, Score, run_campaign
from lmr.engine.policy import RecoveryPolicy
from lmr.replay_tool.errors import Usage

DEFAULT_STANDBYS = (1, 2, 4, 8, 16)
FLEET_NODES = 8
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Row:
    """One policy with one pool size.

    `hold_permille` is the chance that a replacement finds no standby, in thousandths; `lost_node_hours` is training
    time lost to recoveries and repeated steps, and idle standbys, over the whole campaign; `best` when no other row has
    both fewer lost node-hours and a smaller chance of holding.
    """

    policy: str
    standbys: int
    incidents: int
    recoveries: int
    replacements: int
    effective_training_permille: int
    mean_recovery_ms: int
    rollback_steps: int
    false_evictions: int
    missed_faults: int
    false_halts: int
    hold_permille: int
    lost_node_hours: int
    best: bool = False


@dataclass(frozen=True)
class Simulation:
    """All rows, and what they were drawn from."""

    profile: str
    source: str
    nodes: int
    days: int
    seed: int
    repair_hours: int
    incidents: int
    rows: tuple[Row, ...]


def simulate(
    *,
    profile: str,
    nodes: int,
    days: int,
    seed: int,
    standbys: Sequence[int] = (),
    repair_hours: int = 24,
    policies: Mapping[str, RecoveryPolicy] | None = None,
) -> Simulation:
    """Plays a campaign under each policy and judges each pool size. Equal seeds give equal answers.

    Args:
        profile: name of a profile of the engine's campaigns.
        nodes: nodes that train.
        days: days of training.
        seed: of the campaign; every policy meets the same failures.
        standbys: pool sizes to judge.
        repair_hours: hours until a replaced machine, or another for it, is a standby.
        policies: name to policy; none: the default policy.

    Raises:
        Usage: no such profile, or a number below 1.
    """
    if profile not in PROFILES:
        raise Usage(f"simulate: --profile {profile}: known profiles are {', '.join(PROFILES)}")
    if min(nodes, days, repair_hours, *standbys) < 1:
        raise Usage("simulate: --nodes, --days, --standby and --repair-hours must be at least 1")
    drawn = PROFILES[profile]
    incidents = max(1, round(drawn.failures_per_1000_node_days_x10 * nodes * days / 10_000))
    rows = []
    for name, policy in (policies or {"default": RecoveryPolicy()}).items():
        score = run_campaign(profile, seed, incidents, nodes=FLEET_NODES, policy=policy)
        rows += [_row(name, size, score, nodes, days, repair_hours) for size in standbys or DEFAULT_STANDBYS]
    return Simulation(profile, drawn.source, nodes, days, seed, repair_hours, incidents, _pareto(rows))


def _row(name: str, standbys: int, score: Score, nodes: int, days: int, repair_hours: int) -> Row:
    lost_ms = score.total_ms - score.training_ms
    total_ms = days * DAY_MS
    under_repair = score.standbys_used / days * repair_hours / 24
    return Row(
        policy=name,
        standbys=standbys,
        incidents=score.incidents,
        recoveries=score.resumed,
        replacements=score.standbys_used,
        effective_training_permille=max(0, 1000 * (total_ms - lost_ms) // total_ms),
        mean_recovery_ms=(score.decide_ms + score.recover_ms) // max(1, score.resumed),
        rollback_steps=score.rollback_steps,
        false_evictions=score.false_evictions,
        missed_faults=score.missed_faults,
        false_halts=score.false_halts,
        hold_permille=round(1000 * poisson_tail(under_repair, standbys)),
        lost_node_hours=round(lost_ms / 3_600_000 * nodes + standbys * days * 24),
    )


def poisson_tail(mean: float, at_least: int) -> float:
    """P(X >= at_least) of a Poisson variable."""
    below = sum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(at_least)) if mean > 0 else 1.0
    return min(1.0, max(0.0, 1.0 - below))


def _pareto(rows: list[Row]) -> tuple[Row, ...]:
    def beaten(row: Row) -> bool:
        mine = (row.lost_node_hours, row.hold_permille)
        return any(
            other != mine and other[0] <= mine[0] and other[1] <= mine[1]
            for other in ((item.lost_node_hours, item.hold_permille) for item in rows)
        )

    return tuple(Row(**{**vars(row), "best": not beaten(row)}) for row in rows)
