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
    ReplayChecked,
)
from lmr.integrations.scout.detector_policy import ContinuityPolicy, HangPolicy, RerunPolicy, StragglerPolicy
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
    later = 1_000 + HangPolicy().artifact_wait_ms
    tell(made, *HUNG)
    assert tell(made, *HUNG, now_ms=later - 1_000) == []
    (fact,) = tell(made, *HUNG, now_ms=later)
    assert isinstance(fact, RankHung)
    assert fact.artifacts is None
    assert tell(made, *HUNG, now_ms=later + 500) == []


def test_a_first_batch_may_take_as_long_as_first_batches_take() -> None:
    """Every epoch its worker processes start again, and some caches are cold."""

    def told(still_ms: int, **more: Any) -> list[EventData | Ask]:
        late = absent(2, phase=Phase.DATA, still_ms=still_ms, batches=900, fresh=True, **more)
        return tell(scout(), at_118(0, longest_first_ms=12_000), at_118(1), late, at_118(3))

    assert told(119_000) == []
    assert told(121_000) == [InputStalled(generation=3, rank=2, step=9, stalled_ms=121_000)]
    assert told(121_000, longest_first_ms=13_000) == []


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


def test_a_rank_that_is_slow_on_the_next_machine_too_is_left_alone() -> None:
    """It logs for all, say. One machine is given up for it; started again on the same one, it is told again."""
    made = scout(ReplayPolicy(straggler=StragglerPolicy(windows=3)))
    told = []
    for generation, machine in enumerate(["a", "a", "b", "a"], 4):
        made.begin(generation, 4, dict(enumerate([machine, "x", "y", "z"])))
        facts: list[EventData | Ask] = []
        for report in range(3 * PARTS + 1):
            steps = 2 * report + 2
            views = [
                at_118(r, step=steps, steps_here=steps, still_ms=5, own_us=steps * own, role=5)
                for r, own in enumerate([130_000, 101_000, 99_000, 100_000])
            ]
            made.heard(message(*views, generation=generation), 10_000 * report // PARTS)
            facts += made.tick(10_000 * report // PARTS)
        told.append([fact.rank for fact in facts if isinstance(fact, RankSlowed)])
    assert told == [[0], [0], [], []]


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


# -- state at rest ----------------------------------------------------------------------------------------------------


def stepping(number: int, step: int, checked: int | None, damaged: int | None = None) -> Summary:
    return replace(
        absent(number), still_ms=0, step=step, checked_step=checked, damaged_step=damaged, groups=(), waiting=False
    )


def verdict(step: int, verdict: str, ranks: tuple[int, ...], world: int) -> ReplayChecked:
    return ReplayChecked.model_validate(
        {
            "generation": 3,
            "step": step,
            "recipe": "continuity",
            "verdict": verdict,
            "ranks": ranks,
            "peers": tuple(range(world)),
        }
    )


def test_damage_at_rest_is_of_the_step_that_left_the_state_and_said_once() -> None:
    made = scout()
    damaged = [stepping(n, 41, 40, 40 if n == 2 else None) for n in range(4)]
    assert tell(made, *damaged) == [verdict(40, "corrupt", (2,), 4)]
    assert tell(made, *damaged, now_ms=1_100) == []


def test_damage_waits_for_the_other_ranks_word_on_that_step() -> None:
    made = scout(world=2)
    late = [stepping(0, 40, 39), stepping(1, 41, 40, 40)]
    assert tell(made, *late, now_ms=1_000) == []
    assert tell(made, *late, now_ms=2_400) == []
    assert tell(made, *late, now_ms=2_500) == [verdict(40, "corrupt", (1,), 2)]


def test_what_changes_on_most_ranks_at_one_step_is_the_scripts_doing() -> None:
    made = scout()
    assert tell(made, *[stepping(n, 41, 40, 40) for n in range(4)]) == [verdict(40, "inconclusive", (), 4)]
    after = [stepping(n, 51, 50, 50 if n == 1 else 40) for n in range(4)]
    assert tell(made, *after, now_ms=2_000) == [verdict(50, "corrupt", (1,), 4)]


def test_a_single_rank_is_believed() -> None:
    assert tell(scout(world=1), stepping(0, 41, 40, 40)) == [verdict(40, "corrupt", (0,), 1)]


def test_a_step_is_vouched_for_once_every_rank_has_found_its_state_again() -> None:
    made = scout(world=2)
    tell(made, stepping(0, 41, 40), stepping(1, 40, 39))
    assert not made.vouches(40)
    assert made.vouches(39)
    tell(made, stepping(0, 42, 41), stepping(1, 42, 41))
    assert made.vouches(41)
    tell(made, stepping(0, 51, 50), stepping(1, 51, 50, 50))
    assert not made.vouches(50)
    off = scout(ReplayPolicy(continuity=ContinuityPolicy(enabled=False), rerun=RerunPolicy(enabled=False)), world=2)
    assert off.vouches(40)


def test_no_step_after_damage_is_vouched_for_until_the_damage_is_judged() -> None:
    """What the step before it needs is kept that long: the run may have to go back behind the damage."""
    made = scout(world=3)
    made.heard(message(stepping(0, 44, 43), stepping(1, 44, 43), stepping(2, 44, 43, 41)), 1_000)
    assert made.vouches(40)
    assert not made.vouches(43)
    assert made.tick(1_000) == [verdict(41, "corrupt", (2,), 3)]
    assert not made.vouches(43)
    shared = scout(world=3)
    shared.heard(message(*[stepping(n, 44, 43, 41) for n in range(3)]), 1_000)
    assert not shared.vouches(43)
    assert shared.tick(1_000) == [verdict(41, "inconclusive", (), 3)]
    assert shared.vouches(43)


def test_continuity_can_be_switched_off() -> None:
    made = scout(ReplayPolicy(continuity=ContinuityPolicy(enabled=False)), world=1)
    assert tell(made, stepping(0, 41, 40, 40)) == []


# -- calls computed again ---------------------------------------------------------------------------------------------


def reran(number: int, digest: str, step: int = 100, **more: Any) -> dict[str, Any]:
    told = {"kind": "rerun", "generation": 3, "rank": number, "step": step, "recipe": "0.head", "call": "c"}
    return told | {"digests": [digest, digest]} | more


def alive(made: RunScout, world: int = 4) -> None:
    assert tell(made, *[stepping(n, 101, 100) for n in range(world)]) == []


def test_a_rank_that_computes_otherwise_is_named_at_once() -> None:
    made = scout()
    alive(made)
    for number in range(4):
        made.told(reran(number, "B" if number == 3 else "A"), 1_000)
    (fact,) = made.tick(1_000)
    assert isinstance(fact, ReplayChecked)
    assert (fact.step, fact.recipe, fact.verdict, fact.ranks, fact.peers) == (
        100, "0.head", "corrupt", (3,), (0, 1, 2, 3),
    )  # fmt: skip


def test_a_clean_result_is_told_of_a_step_that_is_kept_only() -> None:
    made = scout()
    alive(made)
    made.retained(200)
    for step in (100, 200):
        for number in range(4):
            made.told(reran(number, "A", step), 1_000)
    assert [(f.step, f.verdict) for f in made.tick(1_000) if isinstance(f, ReplayChecked)] == [(200, "clean")]


def test_results_of_another_generation_and_what_is_none_are_dropped() -> None:
    made = scout(world=1)
    alive(made, 1)
    made.told(reran(0, "A", generation=2), 1_000)
    made.told(reran(0, "A", digests=["A"]), 1_000)
    made.told({"kind": "rerun", "generation": 3}, 1_000)
    assert made.tick(60_000) == []


def test_what_was_agreed_on_outlives_a_generation() -> None:
    made = scout(world=2)
    alive(made, 2)
    for number in range(2):
        made.told(reran(number, "A"), 1_000)
    assert made.tick(1_000) == []
    made.begin(4, 2)
    made.heard(message(*[stepping(n, 301, 300) for n in range(2)], generation=4), 2_000)
    for number in range(2):
        made.told(reran(number, "AB"[number], 300, generation=4), 2_000)
    assert [f.ranks for f in made.tick(2_000) if isinstance(f, ReplayChecked)] == [(1,)]


def test_calls_computed_again_can_be_switched_off() -> None:
    made = scout(ReplayPolicy(rerun=RerunPolicy(enabled=False)))
    alive(made)
    for number in range(4):
        made.told(reran(number, "B" if number == 3 else "A"), 1_000)
    assert made.tick(1_000) == []


@pytest.mark.parametrize(("phase", "key"), [(Phase.DATA, "input_enabled"), (Phase.CHECKPOINT, "checkpoint_enabled")])
def test_stalls_can_be_switched_off(phase: Phase, key: str) -> None:
    stuck = [replace(absent(n), phase=phase, batches=9, still_ms=700_000, groups=()) for n in range(4)]
    hang = HangPolicy(enabled=False)
    assert len(tell(scout(ReplayPolicy(hang=hang)), *stuck)) == 4
    assert tell(scout(ReplayPolicy.model_validate({"hang": hang, "stall": {key: False}})), *stuck) == []
