"""TorchTitan's own trainer through the CPU shim of the tests. Without TorchTitan it is skipped."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from titan_assets import assets

pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="TorchTitan is not installed here"),
]

SHIM = str(Path(__file__).parent / "shims" / "torchtitan_on_cpu.py")


def test_fully_sharded_trainer(drill, tmp_path):
    """FSDP2 as TorchTitan sets it up; the place in the data is its own loader's.

    A restarted trainer loads the newest of its own checkpoints: what was captured is newer. When nobody's memory is
    left, what that checkpoint lacks is found in it, too.
    """
    where = assets(tmp_path / "assets")
    environ = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    drill(
        "titan",
        [SHIM, "--assets", str(where), "--checkpoints", "{out}-own"],
        steps=96,
        stop=True,
        corrupt="by continuity",
        proving=14,
        durable=True,
        environ=environ,
    )
