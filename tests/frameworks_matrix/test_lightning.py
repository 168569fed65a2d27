"""Lightning's Trainer. Runs in the environment `environments.py` makes; without Lightning it is skipped."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="Lightning is not installed here"),
]

SCRIPT = str(Path(__file__).parents[2] / "docs" / "examples" / "lightning_trainer.py")
OWN = 'type("Own", (lightning.pytorch.strategies.SingleDeviceStrategy,), {})("cpu")'


def test_trainer(drill):
    """DDP, two micro-batches a step, epochs that end in validation and in a schedule that follows their mean loss."""
    loop = drill("lightning", [SCRIPT, "--accumulate", "2"], corrupt="by continuity", groups={(0, 1)})
    assert {p["checkpoint"]["trust"] for p in loop.plans()[1:]} == {"certified"}


@pytest.mark.long
def test_trainer_of_one_process(drill):
    """Without DDP, killed and restarted in place."""
    drill("lightning-single", [SCRIPT], nodes=1, lose=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("import lightning\n", "import pytorch_lightning as lightning\n"), "pytorch_lightning is not supported"),
        (('strategy="ddp"', f'strategy={OWN} if True else "ddp"'), "Lightning's Own is not supported"),
    ],
    ids=["package", "strategy"],
)
def test_what_is_not_supported_runs_unprotected_and_that_is_said(jobs, tmp_path, change, said):
    script = tmp_path / "train.py"
    script.write_text(Path(SCRIPT).read_text().replace(*change))
    assert script.read_text() != Path(SCRIPT).read_text()
    job = jobs("loop", [str(script), "--steps", "5", "--log-file", "{out}"], nodes="1")
    agent = job.start("node-1")
    assert job.wait_exit("node-1", 240) == 0, job.standing()
    lines = [line for line in agent.text().splitlines() if "lmr: rank 0: " in line]
    assert [f"framework: {said}" in line for line in lines] == [True], job.standing()
    assert job.facts("checkpoint_captured") == []
    assert job.step() == 5
