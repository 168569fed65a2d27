"""A framework of a version that was not tested, under the real torchrun: the script runs, the output says what holds.

The framework is a stand-in of a few lines that calls itself DeepSpeed, for no real one has the version 99.
"""

import pytest

pytestmark = [pytest.mark.torchrun, pytest.mark.long, pytest.mark.timeout(600)]

STAND_IN = {
    "__init__.py": "from deepspeed import runtime\nfrom deepspeed.runtime import dataloader, engine\n"
    "def initialize():\n    return 'initialized'\n",
    "runtime/__init__.py": "",
    "runtime/engine.py": "class DeepSpeedEngine:\n"
    "    def _take_model_step(self): ...\n    def load_checkpoint(self): ...\n    def save_checkpoint(self): ...\n",
    "runtime/dataloader.py": "class DeepSpeedDataLoader:\n    def _create_dataloader(self): ...\n",
}
NEWER = "lmr: rank 0: framework version: DeepSpeed 99.0 is newer than 0.19.8, the newest tested; tested: 0.19.8"
OLDER = "lmr: rank 0: framework: DeepSpeed 0.1 is older than 0.19.8, the oldest supported; tested: 0.19.8"
CHANGED = "'_take_model_step'\"); installed: DeepSpeed 99.0; tested: 0.19.8"


@pytest.mark.parametrize(
    ("version", "renamed", "attaches", "said"),
    [("99.0", "", True, NEWER), ("0.1", "", False, OLDER), ("99.0", "_take_model_step", False, CHANGED)],
    ids=["newer", "older", "changed"],
)
def test_a_version_that_was_not_tested(jobs, tmp_path, version, renamed, attaches, said):
    """Newer: attached, with a warning. Older, or without the functions the adapter wraps: as without us."""
    for name, code in STAND_IN.items():
        path = tmp_path / "deepspeed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code.replace(renamed, "_step") if renamed else code)
    metadata = tmp_path / f"deepspeed-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: deepspeed\nVersion: {version}\n")
    script = tmp_path / "train.py"
    script.write_text("import deepspeed\nprint('attached:', hasattr(deepspeed.initialize, '__wrapped__'))\n")
    job = jobs("loop", [str(script)], nodes="1", environ={"PYTHONPATH": str(tmp_path)})
    agent = job.start("node-1")
    assert job.wait_exit("node-1", 240) == 0, job.standing()
    lines = agent.text().splitlines()
    assert [line for line in lines if line.endswith(f"attached: {attaches}")], job.standing()
    assert len([line for line in lines if "lmr: rank 0: framework" in line and said in line]) == 1, job.standing()
