"""Megatron Core through the CPU shim of the tests. Without Megatron Core it is skipped."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="Megatron Core is not installed here"),
]

SCRIPT = str(Path(__file__).parents[2] / "docs" / "examples" / "megatron_gpt.py")
SHIM = str(Path(__file__).parent / "shims" / "megatron_on_cpu.py")


@pytest.mark.long
def test_tensor_parallel(drill):
    """Two tensor-parallel ranks on two machines, with dropout from the random-state tracker."""
    drill("megatron-tp", [SHIM, SCRIPT, "--tensor-parallel", "2"], corrupt="by continuity")


@pytest.mark.long
def test_pipeline_parallel(drill):
    """Two stages on two machines, four micro-batches a step through Megatron's own schedule."""
    command = [SHIM, SCRIPT, "--pipeline-parallel", "2", "--micro-batches", "4"]
    drill("megatron-pp", command, corrupt="by continuity")


@pytest.mark.long
def test_tensor_and_data_parallel(drill):
    """Two times two ranks: who has the same part of the model compares it, and nobody else."""
    drill(
        "megatron-tp-dp",
        [SHIM, SCRIPT, "--tensor-parallel", "2"],
        nproc=2,
        corrupt="by continuity",
        groups={(0, 2), (1, 3)},
    )


@pytest.mark.long
def test_distributed_optimizer(drill):
    """Data parallel: each rank holds its shard of the optimizer's state."""
    drill("megatron-sharded", [SHIM, SCRIPT, "--distributed-optimizer"], stop=True, corrupt="by continuity")


@pytest.mark.long
def test_distributed_optimizer_in_bf16(drill):
    """Master parameters and their moments are shards in 32 bits, the model is in 16."""
    drill("megatron-bf16", [SHIM, SCRIPT, "--distributed-optimizer", "--bf16"], corrupt="by continuity")


def test_data_parallel(drill):
    """Replicated state on three ranks: peers compare it, and two outvote the one that is corrupted."""
    loop = drill("megatron-dp", [SHIM, SCRIPT], nodes=3, corrupt="by majority")
    assert {p["checkpoint"]["trust"] for p in loop.plans()[1:]} == {"certified"}
