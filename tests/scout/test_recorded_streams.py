"""Precision and recall over streams of real trainings under load, with the default thresholds as they stood before.

`python tests/scout/test_recorded_streams.py` plays all of them and prints the rates.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path

import pytest

from lmr.engine.events import EventData
from lmr.integrations.scout.replay_policy import ReplayPolicy

sys.path.insert(0, str(Path(__file__).parent))
from playing import play
from recorded import Stream, clean, faulty, recordings

EXPECTED = {
    "absent": ("rank_hung", "collective never entered"),
    "desync": ("collective_desynced", "other collective called"),
    "hang": ("rank_hung", "hang in forward or backward"),
    "input": ("input_stalled", "batch never comes"),
    "nan": ("loss_diverged", "loss not finite"),
    "slow": ("rank_slowed", "rank that makes steps 30 to 150 percent longer"),
    "stop": ("rank_hung", "stopped process"),
}
KINDS = sorted(EXPECTED)
CLEAN_STREAMS = 300
FAULTY_STREAMS = 301
FIRST_SEED = 1_000
"""Streams below it were looked at while this was written; these were not."""
THRESHOLDS = {
    "hang": {"floor_ms": 30_000, "step_factor": 5, "unlocalized_factor": 2, "long_section_s": 1_800},
    "desync": {"settle_ms": 2_000},
    "stall": {"input_floor_ms": 60_000, "input_factor": 10},
    "loss": {"settle_ms": 1_500},
    "straggler": {"window_ms": 10_000, "window_steps": 10, "outlier_z_hundredths": 350, "windows": 5},
}
"""The defaults before anything was recorded; they were not changed for it."""


def test_the_thresholds_are_those_that_were_frozen() -> None:
    found = json.loads(ReplayPolicy().model_dump_json())
    assert {table: {key: found[table][key] for key in keys} for table, keys in THRESHOLDS.items()} == THRESHOLDS


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_one_fault_of_each_kind_is_found_in_a_recorded_training(seed: int) -> None:
    stream = faulty(seed, KINDS)
    facts = run(stream)
    assert {(fact.type, blamed(fact)) for fact in facts} == {(EXPECTED[stream.kind][0], (stream.rank,))}


@pytest.mark.parametrize("seed", range(5))
def test_a_recorded_training_under_load_is_accused_of_nothing(seed: int) -> None:
    assert run(clean(seed)) == []


def test_each_recording_as_a_whole_is_accused_of_nothing() -> None:
    assert {r.number: play(list(r.messages), r.world) for r in recordings()} == {r.number: [] for r in recordings()}


def run(stream: Stream) -> list[EventData]:
    return play(stream.messages, stream.world)


def blamed(fact: EventData) -> tuple[int, ...]:
    ranks = getattr(fact, "ranks", None)
    return ranks if ranks is not None else (fact.rank,)  # type: ignore[attr-defined]


def report() -> str:
    """The table, in Markdown."""
    found: Counter[str] = Counter()
    of: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for seed in range(FIRST_SEED, FIRST_SEED + FAULTY_STREAMS):
        stream = faulty(seed, KINDS)
        facts = run(stream)
        of[stream.kind] += 1
        found[stream.kind] += any(
            fact.type == EXPECTED[stream.kind][0] and blamed(fact) == (stream.rank,) for fact in facts
        )
        wrong[stream.kind] += any(set(blamed(fact)) - {stream.rank} for fact in facts)
    false_alarms = sum(bool(run(clean(seed))) for seed in range(FIRST_SEED, FIRST_SEED + CLEAN_STREAMS))
    lines = ["| recorded streams | found, right rank | anybody else accused |", "|---|---|---|"]
    lines += [f"| {EXPECTED[kind][1]} | {found[kind]} of {of[kind]} | {wrong[kind]} |" for kind in KINDS]
    lines.append(
        f"| **{FAULTY_STREAMS} with a fault** | **{found.total()}**: {said(found.total(), FAULTY_STREAMS)} "
        f"| **{wrong.total()}**: {said(wrong.total(), FAULTY_STREAMS)} |"
    )
    lines.append(f"| **{CLEAN_STREAMS} without** | | **{false_alarms}**: {said(false_alarms, CLEAN_STREAMS)} |")
    return "\n".join(lines)


def said(count: int, of: int) -> str:
    """A rate with its 95 % interval."""
    low, high = interval(count, of)
    return f"{100 * count / of:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def interval(count: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a rate after Clopper and Pearson (Biometrika 26, 1934)."""

    def at_most(k: int, p: float) -> float:
        return sum(math.comb(of, i) * p**i * (1 - p) ** (of - i) for i in range(k + 1))

    def solve(holds) -> float:  # type: ignore[no-untyped-def]
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

    lower = 0.0 if count == 0 else solve(lambda p: 1 - at_most(count - 1, p) < 0.025)
    upper = 1.0 if count == of else solve(lambda p: at_most(count, p) > 0.025)
    return lower, upper


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    """0 of 300 bounds the rate at 1.2 %; the other values are of R's binom.test."""
    assert [round(x, 4) for x in interval(0, 300)] == [0.0, 0.0122]
    assert [round(x, 4) for x in interval(7, 50)] == [0.0582, 0.2674]
    assert [round(x, 4) for x in interval(50, 50)] == [0.9289, 1.0]


if __name__ == "__main__":
    print(report())
    print(f"{len(recordings())} recordings, {sum(r.length_ms for r in recordings()) // 60_000} minutes")
