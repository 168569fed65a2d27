"""The Hugging Face Trainer, and Accelerate without it.

Runs in the environment `environments.py` makes; without transformers it is skipped.
"""

import importlib.util
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed here"),
]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SCRIPT = str(EXAMPLES / "huggingface_trainer.py")
ACCELERATE = str(EXAMPLES / "accelerate_loop.py")


def test_trainer(drill):
    """DDP, two micro-batches a step, epochs that end within the run; the history of logs is the same, too.

    A restarted script finds checkpoints of the Trainer's own, and asks for the newest: what was captured is newer.
    """
    own = ["--output", "{out}-checkpoints", "--save-every", "12"]
    command = [SCRIPT, "--accumulate", "2", *own]
    loop = drill("huggingface", command, stop=True, corrupt="by continuity", durable=True, groups={(0, 1)})
    assert {p["checkpoint"]["trust"] for p in loop.plans()[1:]} == {"certified"}


@pytest.mark.long
def test_accelerate(drill):
    """A loop of the script's own: loaders that take a batch ahead, two micro-batches a step, several passes."""
    loop = drill("accelerate", [ACCELERATE, "--accumulate", "2"], groups={(0, 1)})
    assert {p["checkpoint"]["trust"] for p in loop.plans()[1:]} == {"certified"}
