"""A script that loses its workers and is restored ends bit for bit as if nothing had happened.

Each case is a plain PyTorch loop (`scripts/variants.py`) that is killed some steps after the step it is restored to, and
compared in every step's loss and samples and in all state at its end with a run that has none of our software in it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario import Scenario, reference

VARIANTS = Path(__file__).parent / "scripts" / "variants.py"

# 48 samples in batches of 8: an epoch has 6 steps, so 6 and 12 are epoch boundaries (3 and 6 when accumulating by 2).
SINGLE = [
    ("plain", 1),
    ("plain", 10),
    ("plain", 12),
    ("plateau", 15),
    ("own_generator", 8),
    ("loader_generator", 14),
    ("python_sampler", 9),
    ("workers", 10),
    ("persistent_workers", 16),
    ("stream", 10),
    ("accumulate", 4),
    ("two_optimizers", 13),
    ("no_loader", 10),
    ("zipped", 10),
]


def recover(tmp_path: Path, variant: str, step: int, nodes: int, local: int) -> Scenario:
    script = [str(VARIANTS), variant]
    left_alone = reference(script, tmp_path, nodes * local)
    scenario = Scenario([*script, "--pause", "0.02"], tmp_path, nodes, local)
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


@pytest.mark.parametrize(("variant", "step"), SINGLE)
def test_one_process(tmp_path: Path, variant: str, step: int) -> None:
    """Position, optimizer, schedule, scaler, averages and random states of one process come back exactly."""
    scenario = recover(tmp_path, variant, step, nodes=1, local=1)
    degraded = [m["what"] for m in scenario.nodes[0].workers_say.having(kind="degraded")]
    assert degraded == (["position"] if variant == "stream" else [])


@pytest.mark.parametrize(("variant", "step"), [("ddp", 2), ("ddp", 9), ("ddp_unused", 8), ("ddp_static", 7)])
def test_four_ranks(tmp_path: Path, variant: str, step: int) -> None:
    """With four ranks the order of sums counts: gradient buckets come back as they were, too."""
    recover(tmp_path, variant, step, nodes=2, local=2)
