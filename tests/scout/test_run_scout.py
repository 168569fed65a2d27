"""What RunScout publishes, and what it keeps to itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lmr.engine.events import (
    CheckpointStalled,
    CollectiveDesynced,
    EventData,
    InputStalled,
    LossDiverged,
    RankHung,
    RankSlowed,
)
from lmr.integrations.scout.detector_policy import HangPolicy, StragglerPolicy
from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.replay_policy import ReplayPolicy
from lmr.integrations.scout.run_scout import Ask, RunScout
from lmr.integrations.scout.straggler import PARTS
from lmr.integrations.scout.summary import GroupState, Summary, from_wire, to_wire

G = 41
GROUPS = {str(G): {"name": "dp", "ranks": None}}
CALLS = {"77": "all_reduce"}


def at_118(number: int, **more: Any) -> Summary:
    waits = Summary(
        number, 9, 9, 0, Phase.IDLE, waiting=True, waiting_group=G, still_ms=40_000, state="S",
        longest_step_ms=500, groups=(GroupState(G, 118, 77, 117, 0, 0),), recent=((G, 118, 77),),
    )  # fmt: skip
    return replace(waits, **more)


def absent(number: int, **more: Any) -> Summary:
    return at_118(
        number, waiting=False, waiting_group=0, groups=(GroupState(G, 117, 77, 117, 0, 0),), recent=(), **more
    )


def message(*ranks: Summary, generation: int = 3) -> dict[str, Any]:
    return {"generation": generation, "ranks": [to_wire(r) for r in ranks], "groups": GROUPS, "calls": CALLS}


def scout(policy: ReplayPolicy | None = None, world: int = 4) -> RunScout:
    made = RunScout(policy or ReplayPolicy())
    made.begin(3, world)
    return made


def tell(made: RunScout, *ranks: Summary, now_ms: int = 1_000) -> list[EventData | Ask]:
    made.heard(message(*ranks), now_ms)
    return made.tick(now_ms)


HUNG = (at_118(0), at_118(1), absent(2), at_118(3))


def test_a_summary_survives_the_wire() -> None:
    assert from_wire(to_wire(HUNG[0])) == HUNG[0]


def test_evidence_is_asked_for_and_cited_before_a_hang_is_published() -> None:
    made = scout()
    (ask,) = tell(made, *HUNG)
    assert ask == Ask(1, (2, 0))
    assert made.tick(1_500) == []
    made.captured({"request": 1, "ranks": [2, 0], "artifacts": [{"name": "stacks", "digest": "d"}]})
    (fact,) = made.tick(1_600)
    assert isinstance(fact, RankHung)
    assert (fact.generation, fact.ranks, fact.step, fact.stalled_ms) == (3, (2,), 9, 40_000)
    assert fact.artifacts is not None
    assert [(a.name, a.digest) for a in fact.artifacts] == [("stacks", "d")]


def test_a_hang_is_published_without_evidence_that_does_not_come_and_only_once() -> None:
    made = scout()
    tell(made, *HUNG)
    later = 1_000 + HangPolicy().artifact_wait_ms
    (fact,) = tell(made, *HUNG, now_ms=later)
    assert isinstance(fact, RankHung)
    assert fact.artifacts is None
    assert tell(made, *HUNG, now_ms=later + 500) == []


def test_survivors_of_a_dead_rank_are_never_blamed() -> None:
    made = scout()
    made.ended(3, 1, clean=False)
    assert tell(made, *HUNG) == []


def test_a_rank_whose_process_is_gone_stops_every_judgement() -> None:
    assert tell(scout(), at_118(0), at_118(1, state="X"), absent(2), at_118(3)) == []


def test_a_node_that_says_nothing_is_not_a_hang() -> None:
    made = scout()
    made.heard(message(HUNG[0], HUNG[1]), 1_000)
    made.heard(message(HUNG[2], HUNG[3]), 9_000)
    assert made.tick(9_000) == []


def test_an_unknown_rank_stops_every_judgement() -> None:
    assert tell(scout(), *HUNG[:3]) == []


def test_a_finished_rank_is_not_waited_for() -> None:
    made = scout()
    made.ended(3, 3, clean=True)
    assert tell(made, *HUNG[:3]) == [Ask(1, (2, 0))]


def test_an_older_generation_is_not_heard() -> None:
    made = scout()
    made.heard(message(*HUNG, generation=2), 1_000)
    assert made.tick(1_000) == []


def test_a_message_that_is_none_is_dropped() -> None:
    made = scout()
    made.heard({"generation": 3, "ranks": [{"rank": "x"}], "groups": {}, "calls": {}}, 1_000)
    made.heard({"generation": 3}, 1_000)
    assert made.tick(1_000) == []


def test_a_minority_that_calls_something_else_is_a_desync_and_not_a_hang_too() -> None:
    made = scout()
    other = at_118(2, groups=(GroupState(G, 118, 78, 117, 0, 0),), recent=((G, 118, 78),))
    facts = tell(made, at_118(0), at_118(1), other, at_118(3))
    assert facts == [CollectiveDesynced(generation=3, ranks=(2,), group="dp", collective_seq=118)]
    assert tell(made, at_118(0), at_118(1), other, at_118(3), now_ms=1_500) == []


def test_a_desync_of_two_against_two_names_nobody() -> None:
    other = {"groups": (GroupState(G, 118, 78, 117, 0, 0),), "recent": ((G, 118, 78),)}
    (fact,) = tell(scout(), at_118(0), at_118(1), at_118(2, **other), at_118(3, **other))
    assert fact == CollectiveDesynced(generation=3, ranks=(), group="dp", collective_seq=118)


def test_who_began_to_diverge_is_told_from_who_followed() -> None:
    made = scout()
    calm = {"still_ms": 10}
    ranks = [at_118(r, nonfinite_step=9, **calm) for r in range(4)]
    ranks[1] = replace(ranks[1], nonfinite_step=8)
    assert tell(made, *ranks) == [LossDiverged(generation=3, step=8, ranks=(1,))]
    assert tell(made, *ranks, now_ms=1_500) == []


def test_divergence_waits_until_every_rank_has_taken_the_step() -> None:
    made = scout()
    calm = {"still_ms": 10}
    first = [at_118(0, nonfinite_step=9, **calm), *(at_118(r, step=8, **calm) for r in (1, 2, 3))]
    assert tell(made, *first) == []
    every = [at_118(r, nonfinite_step=9, **calm) for r in range(4)]
    assert tell(made, *every, now_ms=1_500) == [LossDiverged(generation=3, step=9, ranks=(0, 1, 2, 3))]


@pytest.mark.parametrize(
    ("phase", "still_ms", "fact"),
    [
        (Phase.DATA, 59_000, None),
        (Phase.DATA, 61_000, InputStalled(generation=3, rank=2, step=9, stalled_ms=61_000)),
        (Phase.CHECKPOINT, 599_000, None),
        (Phase.CHECKPOINT, 601_000, CheckpointStalled(generation=3, rank=2, step=9, stalled_ms=601_000)),
    ],
)
def test_waiting_for_storage_is_a_stall_of_its_own(phase: Phase, still_ms: int, fact: EventData | None) -> None:
    made = scout()
    views = (at_118(0), at_118(1), absent(2, phase=phase, still_ms=still_ms, batches=9), at_118(3))
    assert tell(made, *views) == ([] if fact is None else [fact])
    assert tell(made, *views, now_ms=1_500) == []


def slowed(
    policy: StragglerPolicy, work_us: list[int], windows: int, pause_us: dict[int, int] | None = None
) -> list[EventData | Ask]:
    """Ten steps a window, reported twice a step; `pause_us` is added to the first rank's work at some reports."""
    made = scout(ReplayPolicy(straggler=policy), world=len(work_us))
    facts: list[EventData | Ask] = []
    paused = 0
    for report in range(windows * PARTS + 1):
        steps = 2 * report + 2
        paused += (pause_us or {}).get(report, 0)
        views = [
            at_118(
                r, step=steps, steps_here=steps, still_ms=5, own_us=steps * own + (paused if r == 0 else 0),
                waited_us=steps * (max(work_us) - own + 1_000), role=5,
            )
            for r, own in enumerate(work_us)
        ]  # fmt: skip
        facts += tell(made, *views, now_ms=10_000 * report // PARTS)
    return facts


def test_a_straggler_is_told_after_enough_windows_and_again_when_their_number_has_doubled() -> None:
    facts = slowed(StragglerPolicy(windows=3), [100_000, 101_000, 99_000, 130_000], 13)
    assert [(f.rank, f.component, f.windows) for f in facts if isinstance(f, RankSlowed)] == [
        (3, "compute", 3),
        (3, "compute", 6),
        (3, "compute", 12),
    ]
    assert all(isinstance(f, RankSlowed) and 25 <= f.slowdown_pct <= 32 for f in facts)


def test_a_pause_of_another_rank_does_not_hide_a_straggler() -> None:
    facts = slowed(StragglerPolicy(windows=3), [100_000, 101_000, 99_000, 130_000], 3, {7: 5_000_000})
    assert [(f.rank, f.windows) for f in facts if isinstance(f, RankSlowed)] == [(3, 3)]


def test_pauses_alone_are_no_straggler() -> None:
    every_window = dict.fromkeys(range(1, 60, PARTS), 3000000)
    assert slowed(StragglerPolicy(windows=2), [100_000, 101_000, 99_000, 100_500], 12, every_window) == []


def test_a_rank_slower_than_its_peers_by_little_is_not_a_straggler() -> None:
    assert slowed(StragglerPolicy(windows=1), [100_000, 101_000, 99_000, 107_000], 5) == []


def test_of_two_ranks_a_born_slow_one_is_not_named() -> None:
    assert slowed(StragglerPolicy(windows=1), [100_000, 150_000], 30) == []


@pytest.mark.parametrize("table", ["pulse", "hang", "desync", "loss"])
def test_each_detector_can_be_switched_off(table: str) -> None:
    off = ReplayPolicy.model_validate({table: {"enabled": False}})
    views = {
        "pulse": HUNG,
        "hang": HUNG,
        "desync": tuple(at_118(r, still_ms=5, recent=((G, 118, 77 + r // 3),)) for r in range(4)),
        "loss": tuple(at_118(r, still_ms=5, nonfinite_step=9) for r in range(4)),
    }[table]
    assert tell(scout(), *views) != []
    assert tell(scout(off), *views) == []
