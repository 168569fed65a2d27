"""`simulate`: equal seeds give equal answers, more failures cost more, larger pools hold less often."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from conftest import Replay

from lmr.replay_tool.verbs.simulate import poisson_tail


def test_equal_seeds_give_equal_campaigns(replay: Replay) -> None:
    one, two, other = (
        replay("simulate", "--nodes", 64, "--days", 60, "--seed", seed, "--json").out for seed in (3, 3, 4)
    )
    assert one == two != other


def test_pool_size_trades_cost_for_holds(replay: Replay) -> None:
    """A larger pool holds less often and idles more; all rows are then worth having."""
    found = replay(
        "simulate", "--nodes", 512, "--days", 54, "--standby", 1, "--standby", 4, "--standby", 12, "--json"
    ).json
    holds = [row["hold_permille"] for row in found["rows"]]
    costs = [row["lost_node_hours"] for row in found["rows"]]
    assert holds == sorted(holds, reverse=True)
    assert costs == sorted(costs)
    assert found["rows"][0]["best"]
    assert found["incidents"] == round(3.8 * 512 * 54 / 1000)


def test_policies_meet_the_same_failures(tmp_path: Path, replay: Replay) -> None:
    """A policy that replaces at the first crash uses more standbys for the same incidents."""
    calm, eager = tmp_path / "calm.toml", tmp_path / "eager.toml"
    calm.write_text("[recovery]\n")
    eager.write_text("[recovery]\nrestarts_before_replace = 0\n")
    found = replay(
        "simulate", "--nodes", 512, "--days", 54, "--standby", 4, "--policy", calm, "--policy", eager, "--json"
    ).json
    first, second = found["rows"]
    assert first["incidents"] == second["incidents"]
    assert second["replacements"] > first["replacements"]
    assert second["hold_permille"] > first["hold_permille"]


@pytest.mark.parametrize("words", [("--profile", "mars"), ("--nodes", "0"), ("--days", "0")])
def test_nonsense_is_refused_in_one_line(words: tuple[str, ...], replay: Replay) -> None:
    ran = replay("simulate", *words)
    assert (ran.code, ran.err.count("\n")) == (2, 1)


def test_poisson_tail() -> None:
    assert poisson_tail(2.0, 1) == pytest.approx(1 - math.exp(-2))
    assert poisson_tail(2.0, 3) == pytest.approx(1 - math.exp(-2) * (1 + 2 + 2))
    assert poisson_tail(0.0, 1) == 0.0
    assert poisson_tail(5.0, 0) == 1.0
