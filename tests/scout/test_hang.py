"""Who is named when nobody gets on."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from lmr.integrations.scout import page, pulse
from lmr.integrations.scout.detector_policy import HangPolicy
from lmr.integrations.scout.hang import Hang, find
from lmr.integrations.scout.page import Phase, PulseReader
from lmr.integrations.scout.standing import Standing
from lmr.integrations.scout.summary import GroupState, Summary, summarize

POLICY = HangPolicy(floor_ms=10_000)
WORLD, EVEN, ODD = 1, 2, 3


def rank(number: int, *, still_ms: int = 20_000, step: int = 9, phase: Phase = Phase.IDLE, **more: object) -> Summary:
    values: dict[str, object] = {"micro": 0, "waiting": False, "waiting_group": 0, "state": "S", "longest_step_ms": 500}
    return Summary(number, step, step, phase=phase, still_ms=still_ms, **(values | more))  # type: ignore[arg-type]


def waits(number: int, seq: int, group: int = WORLD, **more: object) -> Summary:
    state = GroupState(group, seq, 77, seq - 1, 0, 0)
    return rank(number, waiting=True, waiting_group=group, groups=(state,), **more)  # type: ignore[arg-type]


def has_done(number: int, seq: int, group: int = WORLD, **more: object) -> Summary:
    return rank(number, groups=(GroupState(group, seq, 77, seq, 0, 0),), **more)  # type: ignore[arg-type]


def hang_of(*views: Summary, members: dict[int, tuple[int, ...]] | None = None) -> Hang | None:
    standing = Standing(0, len(views))
    for view in views:
        standing.hear(view, 0)
    standing.members = members or {WORLD: tuple(range(len(views)))}
    standing.names = {WORLD: "world"}
    standing.calls = {77: "all_reduce"}
    return find(standing, POLICY, input_has_detector=True)


def test_the_rank_that_never_entered_the_collective_is_named() -> None:
    found = hang_of(*(waits(r, 118) for r in range(5)), has_done(5, 117), waits(6, 118), waits(7, 118))
    assert found is not None
    assert (found.ranks, found.phase, found.witness) == ((5,), "idle", 0)
    assert found.collective is not None
    assert (found.collective.group, found.collective.seq, found.collective.op) == ("world", 118, "all_reduce")


def test_of_two_ranks_the_one_that_does_not_wait_is_named() -> None:
    found = hang_of(waits(0, 4), has_done(1, 3))
    assert found is not None
    assert found.ranks == (1,)


def test_the_end_of_a_chain_of_waiting_is_named() -> None:
    """0 waits for 1 in one group, 1 waits for 2 in another: 2 holds both up."""
    one = replace(waits(1, 8, group=ODD), groups=(GroupState(EVEN, 3, 77, 3, 0, 0), GroupState(ODD, 8, 77, 7, 0, 0)))
    found = hang_of(
        waits(0, 4, group=EVEN), one, has_done(2, 7, group=ODD), waits(3, 8, group=ODD),
        members={EVEN: (0, 1), ODD: (1, 2, 3)},
    )  # fmt: skip
    assert found is not None
    assert found.ranks == (2,)


def test_a_rank_without_its_gradients_holds_up_those_that_reduce() -> None:
    views = [rank(r, phase=Phase.REDUCE) for r in range(4)]
    views[2] = rank(2, phase=Phase.BACKWARD)
    found = hang_of(*views)
    assert found is not None
    assert (found.ranks, found.phase) == ((2,), "backward")


def test_everybody_in_the_same_collective_names_nobody_and_takes_longer() -> None:
    assert hang_of(*(waits(r, 118, still_ms=19_000) for r in range(4))) is None
    found = hang_of(*(waits(r, 118, still_ms=21_000) for r in range(4)))
    assert found is not None
    assert (found.ranks, found.phase) == ((), "collective")


def test_ranks_that_wait_for_each_other_name_nobody() -> None:
    one = replace(waits(0, 4, group=EVEN), groups=(GroupState(EVEN, 4, 77, 3, 0, 0), GroupState(ODD, 7, 77, 7, 0, 0)))
    two = replace(waits(1, 8, group=ODD), groups=(GroupState(EVEN, 3, 77, 3, 0, 0), GroupState(ODD, 8, 77, 7, 0, 0)))
    found = hang_of(one, two, members={EVEN: (0, 1), ODD: (0, 1)})
    assert found is not None
    assert found.ranks == ()


def test_a_rank_whose_data_ended_early_is_not_to_blame() -> None:
    """It waits at the end of the epoch for the others, and they for its gradients: no machine hangs."""
    reducing = [rank(r, phase=Phase.REDUCE, micro=1, groups=(GroupState(WORLD, 117, 77, 117, 0, 0),)) for r in range(3)]
    everybody = (*reducing, waits(3, 118))
    assert hang_of(*(replace(view, still_ms=19_000) for view in everybody)) is None
    found = hang_of(*(replace(view, still_ms=21_000) for view in everybody))
    assert found is not None
    assert found.ranks == ()


@pytest.mark.parametrize("phase", [Phase.EVAL, Phase.CHECKPOINT, Phase.COMPILE, Phase.DECLARED])
def test_whoever_waits_for_a_long_section_does_not_hang(phase: Phase) -> None:
    assert (
        hang_of(rank(0, phase=phase, still_ms=1_700_000), *(waits(r, 118, still_ms=1_700_000) for r in (1, 2))) is None
    )
    assert hang_of(rank(0, phase=phase, still_ms=1_900_000), *(waits(r, 118, still_ms=1_900_000) for r in (1, 2)))


def test_the_first_step_may_take_its_time() -> None:
    assert hang_of(*(rank(r, step=0, phase=Phase.FORWARD, still_ms=600_000) for r in range(4))) is None


TWENTY_MINUTES_MS = 1_200_000


class Told:
    """Four ranks that are told of twice a second; rank 1 is in this phase all the time."""

    def __init__(self, phase: Phase = Phase.IDLE) -> None:
        self.standing = Standing(0, 4)
        self.phase = phase
        self.now_ms = 0

    def later(
        self, ms: int, stopped: tuple[int, ...] = (), still_ms: int = TWENTY_MINUTES_MS
    ) -> tuple[int, ...] | None:
        """Whom the hang names at the end of it, if there is one."""
        for _ in range(0, ms, 500):
            self.now_ms += 500
            for r in range(4):
                state = "T" if r in stopped else "S"
                phase = self.phase if r == 1 else Phase.IDLE
                self.standing.hear(rank(r, phase=phase, state=state, still_ms=still_ms), self.now_ms)
        found = find(self.standing, POLICY, input_has_detector=True)
        return None if found is None else found.ranks


@pytest.mark.parametrize("stopped", [(1,), (0, 1)])
def test_stopped_processes_are_named_even_in_a_long_section(stopped: tuple[int, ...]) -> None:
    """When they have been stopped for as long as a hang must last, however long the section has."""
    told = Told(Phase.EVAL)
    told.later(1_000)
    assert told.later(POLICY.floor_ms, stopped) is None
    assert told.later(500, stopped) == stopped


def test_a_process_that_was_stopped_for_a_moment_does_not_hang() -> None:
    """Though its section, or what the others wait for, has lasted for twenty minutes."""
    told = Told(Phase.EVAL)
    assert told.later(1_000) is None
    assert told.later(2_000, (1,)) is None
    assert told.later(2_000, (0, 2)) is None
    assert told.later(2_000) is None


def test_a_job_that_was_suspended_as_a_whole_does_not_hang() -> None:
    """Nor while its processes go on one after the other, nor because nothing had happened before."""
    told = Told()
    everybody = (0, 1, 2, 3)
    told.later(1_000, still_ms=500)
    assert told.later(60_000, everybody) is None
    assert told.later(2_000, (2, 3)) is None
    assert told.later(2_000, (3,)) is None
    assert told.later(2_000) is None


def test_a_machine_that_was_not_there_does_not_hang() -> None:
    """Agents and all were frozen with it: nobody saw the processes stopped, and nobody counts that time."""
    told = Told()
    told.later(1_000, still_ms=500)
    told.now_ms += TWENTY_MINUTES_MS
    assert told.later(2_000) is None


def test_a_rank_that_gets_on_keeps_the_run_alive() -> None:
    assert hang_of(rank(0, still_ms=100), *(waits(r, 118) for r in (1, 2, 3))) is None


def test_the_second_step_may_take_as_long_as_the_first_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no other yet. Where steps take minutes, a rank that is a little slower is not hung."""
    now_s = 0
    monkeypatch.setattr(pulse, "_now", lambda: now_s * 1_000_000_000)
    fd, memory = page.create(rank=3, generation=0)
    trainer, told = pulse.Pulse(memory, step=0), PulseReader(os.getpid(), fd)
    now_s = 1_000  # the script has loaded what it needs
    trainer.enter(Phase.DATA)
    now_s = 1_020
    trainer.got_batch(Phase.FORWARD)
    now_s = 1_060
    trainer.stepped()
    trainer.enter(Phase.FORWARD)
    now_s = 1_110
    behind = summarize(told.read(), "R", now_s * 1_000_000_000)
    assert (behind.still_ms, behind.longest_step_ms) == (50_000, 60_000)
    others = [rank(r, step=1, phase=Phase.BACKWARD, still_ms=30_000, longest_step_ms=60_000) for r in range(3)]
    assert hang_of(*others, behind) is None
    trainer.stepped()
    assert summarize(told.read(), "R", 0).longest_step_ms == 50_000


def test_the_threshold_follows_the_longest_step() -> None:
    slow = {"longest_step_ms": 30_000}
    assert (
        hang_of(has_done(0, 117, still_ms=140_000, **slow), *(waits(r, 118, still_ms=140_000) for r in (1, 2))) is None
    )
    assert hang_of(has_done(0, 117, still_ms=151_000, **slow), *(waits(r, 118, still_ms=140_000) for r in (1, 2)))


def test_a_rank_that_waits_for_data_is_left_to_the_stall_detector() -> None:
    assert hang_of(has_done(0, 117, phase=Phase.DATA), *(waits(r, 118) for r in (1, 2))) is None
