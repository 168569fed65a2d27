"""DeepSpeed at each ZeRO stage. Runs in the environment `environments.py` makes; without DeepSpeed it is skipped."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed here"),
]

SCRIPT = str(Path(__file__).parents[2] / "docs" / "examples" / "deepspeed_zero.py")
EXTENSIONS = {"TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "extensions")}


def test_partitioned_optimizer(drill):
    """ZeRO 1 on three ranks: two outvote the one whose parameters are corrupted.

    A restarted script first loads the newest of DeepSpeed's own checkpoints: what was captured is newer.
    """
    own = ["--checkpoints", "{out}-checkpoints", "--save-every", "12"]
    drill("zero1", [SCRIPT, "--stage", "1", *own], nodes=3, corrupt="by majority", environ=EXTENSIONS)


@pytest.mark.long
def test_partitioned_parameters(drill):
    """ZeRO 3: nobody but this rank has its part of the parameters, and its own continuity names it."""
    drill("zero3", [SCRIPT, "--stage", "3"], corrupt="by continuity", environ=EXTENSIONS)


@pytest.mark.long
def test_no_partitioning(drill):
    """ZeRO 0: peers hold the same, and say so; of two, continuity says which one is corrupt."""
    command = [SCRIPT, "--stage", "0"]
    loop = drill("zero0", command, stop=True, corrupt="by continuity", groups={(0, 1)}, environ=EXTENSIONS)
    assert {p["checkpoint"]["trust"] for p in loop.plans()[1:]} == {"certified"}


@pytest.mark.long
def test_partitioned_gradients_with_accumulation_and_master_weights(drill):
    """ZeRO 2 in bf16, two micro-batches a step: `step` runs twice as often as a step is completed.

    When nobody's memory is left, what lies beside DeepSpeed's own checkpoint is restored.
    """
    own = ["--checkpoints", "{out}-checkpoints", "--save-every", "12"]
    bf16 = ["--precision", "bf16", "--accumulate", "2"]
    command = [SCRIPT, "--stage", "2", *bf16, *own]
    drill("zero2", command, corrupt="by continuity", durable=True, environ=EXTENSIONS)


@pytest.mark.long
def test_skipped_steps_count_and_the_loss_scale_returns(drill):
    """ZeRO 2 in fp16 from a loss scale that overflows: the skipped steps are steps."""
    loop = drill(
        "zero2-fp16", [SCRIPT, "--stage", "2", "--precision", "fp16"], corrupt="by continuity", environ=EXTENSIONS
    )
    entries = [json.loads(line) for line in Path(f"{loop.prefix}.rank0.jsonl").read_text().splitlines()]
    assert entries[-1]["skipped"] > 0
