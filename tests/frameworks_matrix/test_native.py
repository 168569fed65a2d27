"""Native PyTorch beyond DDP: sharded, hybrid-sharded and tensor-parallel state, and no process group at all."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.torchrun, pytest.mark.timeout(900)]

SCRIPT = str(Path(__file__).parents[2] / "docs" / "examples" / "pytorch_parallel.py")


def test_fully_sharded(drill):
    """FSDP2: each rank's part of parameters and optimizer state comes back from the other machine's memory.

    Nobody else holds the part of the one that is corrupted: its own continuity names it.
    """
    drill("fsdp2", [SCRIPT, "--mode", "fsdp2"], corrupt="by continuity")


@pytest.mark.long
def test_data_parallel(drill):
    """DDP on three ranks: two outvote the one whose parameters are corrupted."""
    loop = drill("ddp", [SCRIPT, "--mode", "ddp"], nodes=3, corrupt="by majority", groups={(0, 1, 2)})
    assert {p["checkpoint"]["trust"] for p in loop.plans()[1:]} == {"certified"}, loop.plans()


@pytest.mark.long
def test_mixed_precision(drill):
    """Autocast, a scaler that skips steps, and accumulation over two batches: the boundary is the optimizer's step.

    Of two that differ, continuity says which one is corrupt.
    """
    drill("amp", [SCRIPT, "--mode", "amp"], corrupt="by continuity")


@pytest.mark.long
def test_hybrid_sharded(drill):
    """HSDP on 2 x 2 ranks: the replicas of a part are peers, and agree; of two, continuity names the corrupt one."""
    groups = {(0, 2), (1, 3)}
    loop = drill("hsdp", [SCRIPT, "--mode", "hsdp"], nproc=2, stop=True, corrupt="by continuity", groups=groups)
    assert {p["checkpoint"]["trust"] for p in loop.plans()[1:]} == {"certified"}, loop.plans()


@pytest.mark.long
def test_tensor_parallel(drill):
    """DTensor over two machines: nobody to compare with, so a rank's own continuity names it."""
    drill("tp", [SCRIPT, "--mode", "tp"], corrupt="by continuity")


@pytest.mark.long
def test_single_process(drill):
    """One rank without a process group, killed and restarted in place."""
    drill("single", [SCRIPT, "--mode", "single"], nodes=1, lose=False)
