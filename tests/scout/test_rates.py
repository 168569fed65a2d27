"""Precision and recall over seeded streams, simulated and cut from real trainings under load: default thresholds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lmr.integrations.scout.replay_policy import ReplayPolicy

sys.path.insert(0, str(Path(__file__).parent))
from playing import play
from rates import (
    CLEAN_STREAMS,
    DOCS,
    EXPECTED,
    FAULTY_STREAMS,
    KINDS,
    RECORD,
    SOURCES,
    blamed,
    interval,
    marked,
    measure,
    render,
)
from recorded import recordings

MEASURED = json.loads(RECORD.read_text())
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


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_one_fault_of_each_kind_is_found_and_nobody_else_blamed(source: str, seed: int) -> None:
    stream = SOURCES[source][0](seed)
    facts = play(stream.messages, stream.world)
    assert {(fact.type, blamed(fact)) for fact in facts} == {(EXPECTED[stream.kind][0], (stream.rank,))}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("seed", range(5))
def test_a_training_without_a_fault_is_accused_of_nothing(source: str, seed: int) -> None:
    """With load, pauses, evaluations, saves, and messages that are lost or late."""
    stream = SOURCES[source][1](seed)
    assert play(stream.messages, stream.world) == []


def test_each_recording_as_a_whole_is_accused_of_nothing() -> None:
    assert {r.number: play(list(r.messages), r.world) for r in recordings()} == {r.number: [] for r in recordings()}


@pytest.mark.parametrize("source", MEASURED)
def test_the_docs_have_the_rates_that_were_recorded(source: str) -> None:
    """The tables are written by `python tests/scout/rates.py` only."""
    found = MEASURED[source]
    begin, end = marked(source)
    assert DOCS.read_text().partition(begin)[2].partition(end)[0] == f"\n{render(source, found)}\n"
    assert (sum(found["of"].values()), found["clean"]) == (FAULTY_STREAMS, CLEAN_STREAMS)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", MEASURED)
def test_the_rates_are_still_those_of_the_record(source: str) -> None:
    """Every stream again: the same faults are missed, and the same nobody is accused."""
    assert measure(source) == MEASURED[source]


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    """0 of 300 bounds the rate at 1.2 %; the other values are of R's binom.test."""
    assert [round(x, 4) for x in interval(0, 300)] == [0.0, 0.0122]
    assert [round(x, 4) for x in interval(7, 50)] == [0.0582, 0.2674]
    assert [round(x, 4) for x in interval(50, 50)] == [0.9289, 1.0]
