"""A script that loses its workers and is restored ends bit for bit as if nothing had happened.

Each case is a plain PyTorch loop (`scripts/variants.py`) that is killed some steps after the step it is restored to,
and compared in every step's loss and samples and in all state at its end with a run that has none of our software in
it. One process and two nodes of two ranks each run always, the other shapes in the long tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scenario import Scenario, reference

VARIANTS = Path(__file__).parent / "scripts" / "variants.py"

# 48 samples in batches of 8: an epoch has 6 steps, so 6 and 12 are epoch boundaries (3 and 6 when accumulating by 2).
SINGLE = [("plain", 10), ("accumulate", 4), ("workers", 10)]
SINGLE_LONG = [
    ("plain", 1),
    ("plain", 12),
    ("plateau", 15),
    ("own_generator", 8),
    ("loader_generator", 14),
    ("python_sampler", 9),
    ("persistent_workers", 16),
    ("stream", 10),
    ("two_optimizers", 13),
    ("no_loader", 10),
    ("zipped", 10),
    ("closure", 10),
    ("closure_no_loader", 10),
    ("copies", 10),
    ("unfrozen", 4),
    ("unfrozen", 10),
    ("added", 4),
    ("added", 10),
    ("second", 4),
    ("second", 10),
    ("compiled", 10),
]
FOUR_RANKS = [("ddp", 9)]
FOUR_RANKS_LONG = [("ddp", 2), ("ddp_unused", 8), ("ddp_static", 7)]

# Copied while forward and backward run, whatever that costs; `meddler` writes to parameters in between.
BACKGROUND = [("meddler", 9)]
BACKGROUND_LONG = [("frozen", 13), ("accumulate", 4), ("workers", 10), ("no_loader", 10), ("plain", 12)]


def recover(tmp_path: Path, variant: str, step: int, nodes: int, local: int, copy_mode: str = "auto") -> Scenario:
    script = [str(VARIANTS), variant]
    left_alone = reference(script, tmp_path, nodes * local)
    policy = {"checkpoint": {"copy_mode": copy_mode}}
    scenario = Scenario([*script, "--pause", "0.02"], tmp_path, nodes, local, **policy)
    try:
        scenario.start()
        scenario.pin(step)
        scenario.wait_complete(step)
        scenario.stop()
        scenario.start(generation=1, step=step)
        scenario.finish(generation=1)
        scenario.assert_same_as(left_alone)
    finally:
        scenario.close()
    return scenario


def cases(always: list[tuple[str, int]], long: list[tuple[str, int]]) -> list[Any]:
    return [*always, *(pytest.param(*case, marks=pytest.mark.long) for case in long)]


@pytest.mark.parametrize(("variant", "step"), cases(SINGLE, SINGLE_LONG))
def test_one_process(tmp_path: Path, variant: str, step: int) -> None:
    """Position, optimizer, schedule, scaler, averages and random states of one process come back exactly."""
    scenario = recover(tmp_path, variant, step, nodes=1, local=1)
    degraded = [m["what"] for m in scenario.nodes[0].workers_say.having(kind="degraded")]
    assert degraded == (["position"] if variant == "stream" else [])


@pytest.mark.long
def test_a_loop_whose_boundaries_cannot_be_seen_is_not_captured_and_that_is_said(tmp_path: Path) -> None:
    scenario = Scenario([str(VARIANTS), "raw"], tmp_path, 1, 1)
    try:
        scenario.start()
        scenario.finish(generation=0)
        (said,) = scenario.nodes[0].workers_say.having(kind="degraded")
    finally:
        scenario.close()
    assert (said["what"], "lmr.boundary() says where one is" in said["why"]) == ("captures", True)


@pytest.mark.parametrize(("variant", "step"), cases(BACKGROUND, BACKGROUND_LONG))
def test_one_process_copied_in_the_background(tmp_path: Path, variant: str, step: int) -> None:
    """What was written to while it was copied is never what comes back."""
    recover(tmp_path, variant, step, nodes=1, local=1, copy_mode="background")


@pytest.mark.long
@pytest.mark.parametrize("variant", ["ddp", "ddp_unused"])
def test_four_ranks_copied_in_the_background(tmp_path: Path, variant: str) -> None:
    """Buffers that forward broadcasts and random states are of the boundary, parameters of the step."""
    recover(tmp_path, variant, 8, nodes=2, local=2, copy_mode="background")


@pytest.mark.parametrize(("variant", "step"), cases(FOUR_RANKS, FOUR_RANKS_LONG))
def test_four_ranks(tmp_path: Path, variant: str, step: int) -> None:
    """With four ranks the order of sums counts: gradient buckets come back as they were, too."""
    recover(tmp_path, variant, step, nodes=2, local=2)
