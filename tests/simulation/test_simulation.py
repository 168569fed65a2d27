"""Histories of simulated runs: the product's own decider, link, fencing and elections in a made-up world."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmr.integrations.torchrun import solitude
from simulation.history import play, quiet

RUN = Path(__file__).parent / "run.py"


@pytest.fixture(autouse=True)
def _quiet():
    with quiet():
        yield


def bad(seeds):
    """What is wrong, by seed."""
    found = {}
    for seed in seeds:
        _, wrong = play(seed)
        if wrong:
            found[seed] = f"{wrong}; see `python tests/simulation/run.py --seed {seed}`"
    return found


def test_nothing_is_wrong_in_some_histories():
    """One writer, one plan a generation, no fact lost or doubled, everybody ends, every decision replays."""
    assert not bad(range(150))


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_nothing_is_wrong_in_many_histories():
    assert not bad(range(150, 5_000))


def test_a_seed_gives_the_same_history_under_any_hash_seed():
    told = [
        subprocess.run(
            [sys.executable, RUN, "--seed", "11"],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in (1, 2)
    ]
    assert told[0] == told[1]
    assert "run_closed" in told[0]


def test_a_node_that_does_not_fence_itself_is_found_out(monkeypatch):
    """The invariants can fail: without fencing, some history has two writers."""

    async def always(*_):
        return True

    monkeypatch.setattr(solitude, "nobody_decides", always)
    assert any("two writers" in text for seed in range(300) for text in play(seed)[1])
