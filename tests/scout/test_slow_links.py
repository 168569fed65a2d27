"""A slow link is the one rank that all slow groups share; a healthy group it is in clears it."""

from __future__ import annotations

from typing import Any

import pytest

from lmr.engine.events import RankSlowed
from lmr.integrations.scout.detector_policy import StragglerPolicy
from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.replay_policy import ReplayPolicy
from lmr.integrations.scout.run_scout import RunScout
from lmr.integrations.scout.straggler import PARTS
from lmr.integrations.scout.summary import GroupState, Summary, to_wire

MESH = {1: (0, 1), 2: (2, 3), 3: (0, 2), 4: (1, 3)}
"""Two by two: tensor-parallel pairs and data-parallel pairs."""
POLICY = StragglerPolicy(windows=3, history_windows=3)
CALM, SICK = 6, 4


def slowed(
    groups: dict[int, tuple[int, ...]], slow: set[int], policy: StragglerPolicy = POLICY
) -> list[tuple[int, str, int]]:
    """Some calm windows, then some in which collectives of the `slow` groups take three times as long."""
    made = RunScout(ReplayPolicy(straggler=policy))
    made.begin(0, 4)
    told = {str(g): {"name": f"group {g}", "ranks": list(ranks)} for g, ranks in groups.items()}
    waited = dict.fromkeys(groups, 0)
    facts: list[Any] = []
    for report in range((CALM + SICK) * PARTS + 1):
        steps = 2 * report + 2
        for g in groups:
            waited[g] += 2 * (60_000 if g in slow and report > CALM * PARTS else 20_000)
        ranks = []
        for rank in range(4):
            own = tuple(
                GroupState(g, steps, 7, steps, waited[g], steps) for g, ranks in groups.items() if rank in ranks
            )
            ranks.append(
                Summary(
                    rank, steps, steps, 0, Phase.IDLE, waiting=False, waiting_group=0, still_ms=5, state="R", role=5,
                    own_us=steps * 100_000, waited_us=sum(g.waited_us for g in own), groups=own,
                )
            )  # fmt: skip
        now_ms = 10_000 * report // PARTS
        made.heard({"generation": 0, "ranks": [to_wire(r) for r in ranks], "groups": told, "calls": {}}, now_ms)
        facts += [f for f in made.tick(now_ms) if isinstance(f, RankSlowed)]
    return [(f.rank, f.component, f.windows) for f in facts]


@pytest.mark.parametrize("rank", range(4))
def test_the_rank_that_all_slow_groups_share_is_named(rank: int) -> None:
    slow = {g for g, ranks in MESH.items() if rank in ranks}
    assert slowed(MESH, slow) == [(rank, "communication", 3)]


def test_a_healthy_group_of_the_suspect_clears_it() -> None:
    assert slowed(MESH | {5: (0, 3)}, {2, 4}) == []


def test_one_slow_group_names_nobody() -> None:
    assert slowed(MESH, {2}) == []


def test_a_slow_network_names_nobody() -> None:
    assert slowed(MESH, set(MESH)) == []


def test_without_a_fault_nobody_is_named() -> None:
    assert slowed(MESH, set()) == []


def test_the_detector_can_be_switched_off() -> None:
    assert slowed(MESH, {2, 4}, StragglerPolicy(windows=3, history_windows=3, enabled=False)) == []
