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


def test_tensor_parallel(drill):
    """Two tensor-parallel ranks on two machines, with dropout from the random-state tracker."""
    drill([SHIM, SCRIPT, "--tensor-parallel", "2"])


def test_distributed_optimizer(drill):
    """Data parallel: each rank holds its shard of the optimizer's state."""
    drill([SHIM, SCRIPT, "--distributed-optimizer"])


def test_data_parallel(drill):
    """Replicated state: peers compare it."""
    loop = drill([SHIM, SCRIPT])
    assert {p["checkpoint"]["trust"] for p in loop.plans()[1:]} == {"certified"}
