"""Campaigns: hundreds of incidents drawn from published statistics, judged against the injected truth."""

from random import Random

import pytest

from lmr.engine.campaign import PROFILES, Score, run_campaign
from lmr.engine.campaign.generator import Fleet
from lmr.engine.campaign.scorer import score
from lmr.engine.campaign.truth import Injection, Outcome, PlanSeen
from lmr.engine.events import ReplayChecked


def _must_hold(found: Score, incidents: int) -> None:
    assert found.incidents == incidents
    assert found.false_evictions_identified == 0
    assert found.unsafe_restores == 0
    assert found.needless_plans == 0
    assert found.missed_faults == 0
    assert found.false_halts == 0
    assert found.unexplained_plans == 0
    assert found.avoidable_rollback_steps == 0


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_three_hundred_incidents(profile: str) -> None:
    _must_hold(run_campaign(profile, 7, 300), 300)


class _LosesEachCheck(Random):
    """Chance as bad as it gets: every check that may be left out is."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0 if (start, stop) == (10, None) else super().randrange(start, stop, step)


def test_checks_that_chance_leaves_out_are_made_up_for_when_a_recovery_gains_nothing() -> None:
    """Three recoveries to one step are a loop to the engine, which halts: bad luck with checks must not make one."""
    fleet = Fleet(PROFILES["llama3"], _LosesEachCheck(1), 4, 2)
    fleet.slots, fleet.generation = {slot: fleet.new_node() for slot in range(4)}, 1
    fleet.restored(10)
    assert [data for _, data in fleet.trains() if isinstance(data, ReplayChecked)] == []
    fleet.restored(10)
    checked = [data.step for _, data in fleet.trains() if isinstance(data, ReplayChecked)]
    assert checked == [step for step in fleet.certified if step > 10] != []
    fleet.restored(checked[-1])
    assert not fleet.surely_checked


def test_seeds_reproduce() -> None:
    assert run_campaign("llama3", 3, 60) == run_campaign("llama3", 3, 60)
    assert run_campaign("llama3", 3, 60) != run_campaign("llama3", 4, 60)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("profile", "seed"), [*((profile, 11) for profile in sorted(PROFILES)), ("llama3", 1)])
def test_ten_thousand_incidents(profile: str, seed: int) -> None:
    _must_hold(run_campaign(profile, seed, 10_000), 10_000)


def _outcome(plan: PlanSeen, **truth: object) -> Outcome:
    fields: dict[str, object] = {
        "number": 1, "cause": "c", "look": "sdc", "culprits": frozenset({"a"}), "must_go": True, "identified": True,
        "first_bad_step": 30, "newest_safe_step": 20, "step": 35, "failed_ms": 0, "needs_plan": True,
    }  # fmt: skip
    injection = Injection(**{**fields, **truth})  # type: ignore[arg-type]
    return Outcome(injection, 10, {0: "a", 1: "b"}, [plan], 1_000)


def test_the_scorer_sees_a_false_eviction_and_a_missed_culprit() -> None:
    wrong = PlanSeen(20, "replace", "sdc", {0: "a", 1: "c"}, 20, True)
    found = score([_outcome(wrong)], ms_per_step=10, total_ms=10_000)
    assert (found.false_evictions_identified, found.missed_faults, found.unsafe_restores) == (1, 1, 0)


def test_the_scorer_sees_an_unsafe_and_a_needlessly_old_step() -> None:
    unsafe = PlanSeen(20, "replace", "sdc", {0: "c", 1: "b"}, 30, True)
    old = PlanSeen(20, "replace", "sdc", {0: "c", 1: "b"}, 10, False)
    assert score([_outcome(unsafe)], ms_per_step=10, total_ms=10_000).unsafe_restores == 1
    found = score([_outcome(old)], ms_per_step=10, total_ms=10_000)
    assert (found.avoidable_rollback_steps, found.rollback_steps, found.unexplained_plans) == (10, 25, 1)
    assert found.effective_training_permille == 1000 * (10_000 - 1_000 - 250) // 10_000


def test_the_scorer_sees_needless_plans_and_halts() -> None:
    halt = PlanSeen(20, "halt", "hang", {0: "a", 1: "b"}, None, True)
    found = score([_outcome(halt, needs_plan=False, must_go=False)], ms_per_step=10, total_ms=10_000)
    assert (found.needless_plans, found.false_halts) == (1, 1)
