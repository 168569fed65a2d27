"""A framework of a version that was not tested, under the real torchrun: the script runs, the output says what holds.

Which version is installed is read from metadata: here metadata of another version stands before the real one, and
everything else is the real framework. Only for functions that are gone there is a stand-in, of a few lines.
"""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from titan_assets import assets

from lmr.integrations.frameworks import registry

pytestmark = [pytest.mark.torchrun, pytest.mark.long, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SHIMS = Path(__file__).parent / "shims"


@dataclass(frozen=True)
class Real:
    """A framework's own training."""

    module: str
    command: tuple[str, ...]
    older: str = "0.1"


REAL = {
    "torch": Real("torch", (str(EXAMPLES / "pytorch_parallel.py"), "--mode", "single")),
    "deepspeed": Real("deepspeed", (str(EXAMPLES / "deepspeed_zero.py"), "--stage", "1")),
    "megatron.core.optimizer": Real("megatron", (str(SHIMS / "megatron_on_cpu.py"), str(EXAMPLES / "megatron_gpt.py"))),
    "torchtitan.components.checkpoint": Real(
        "torchtitan", (str(SHIMS / "torchtitan_on_cpu.py"), "--assets", "{assets}", "--checkpoints", "{out}-own")
    ),
    "transformers.trainer": Real("transformers", (str(EXAMPLES / "huggingface_trainer.py"),)),
    "lightning.pytorch.loops.fit_loop": Real("lightning", (str(EXAMPLES / "lightning_trainer.py"),)),
    "accelerate.data_loader": Real("accelerate", (str(EXAMPLES / "accelerate_loop.py"),)),
}


def pretend(folder: Path, distribution: str, version: str) -> None:
    """Metadata of a version, found first where `folder` is on the path."""
    metadata = folder / f"{distribution.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")


def test_every_supported_framework_is_tried():
    assert REAL.keys() == registry.SUPPORT.keys()


@pytest.mark.parametrize("attaches", [True, False], ids=["newer", "older"])
@pytest.mark.parametrize("module", REAL)
def test_a_framework_of_another_version(jobs, tmp_path, module, attaches):
    """Newer: attached, with a warning, and steps are captured. Older: as without us. Both name what was tested."""
    real, support = REAL[module], registry.SUPPORT[module]
    if importlib.util.find_spec(real.module) is None:
        pytest.skip(f"{support.name} is not installed here")
    version = "99.0" if attaches else real.older
    pretend(tmp_path / "path", support.distribution, version)
    command = [one.replace("{assets}", str(tmp_path / "assets")) for one in real.command]
    if module.startswith("torchtitan"):
        assets(tmp_path / "assets")
    environ = {
        "PYTHONPATH": str(tmp_path / "path"),
        "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "extensions"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
    }
    command += ["--steps", "12", "--pace", "0.05", "--log-file", "{out}", "--final", "{out}"]
    job = jobs("loop", command, nodes="1", environ=environ)
    agent = job.start("node-1")
    assert job.wait_exit("node-1", 240) == 0, job.standing()
    if attaches:
        said = f"version of {support.name}: {support.name} 99.0 is newer than {support.newest}, the newest tested"
    else:
        said = f"framework: {support.name} {version} is older than {support.oldest}, the oldest supported"
    lines = [line for line in agent.text().splitlines() if "lmr: rank 0: " in line]
    times = len({fact["generation"] for fact in job.facts("generation_started")})  # each new process says it once
    assert [f"{said}; tested: {support.newest}" in line for line in lines].count(True) == times, job.standing()
    assert bool(job.facts("checkpoint_captured")) is attaches, job.standing()
    assert job.step() == 12


def test_a_framework_whose_functions_are_gone(jobs, tmp_path):
    """It runs as without us, and the output names what is missing, and what was tested.

    A stand-in that calls itself DeepSpeed, for of no real one `_take_model_step` is gone.
    """
    code = {
        "__init__.py": "from deepspeed import runtime\nfrom deepspeed.runtime import dataloader, engine\n"
        "def initialize():\n    return 'initialized'\n",
        "runtime/__init__.py": "",
        "runtime/engine.py": "class DeepSpeedEngine:\n"
        "    def _step(self): ...\n    def load_checkpoint(self): ...\n    def save_checkpoint(self): ...\n",
        "runtime/dataloader.py": "class DeepSpeedDataLoader:\n    def _create_dataloader(self): ...\n",
    }
    for name, text in code.items():
        path = tmp_path / "deepspeed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    pretend(tmp_path, "deepspeed", "99.0")
    script = tmp_path / "train.py"
    script.write_text("import deepspeed\nprint('attached:', hasattr(deepspeed.initialize, '__wrapped__'))\n")
    job = jobs("loop", [str(script)], nodes="1", environ={"PYTHONPATH": str(tmp_path)})
    agent = job.start("node-1")
    assert job.wait_exit("node-1", 240) == 0, job.standing()
    lines = agent.text().splitlines()
    assert [line for line in lines if line.endswith("attached: False")], job.standing()
    said = "'_take_model_step'\"); installed: DeepSpeed 99.0; tested: 0.19.8"
    assert len([line for line in lines if "lmr: rank 0: framework" in line and said in line]) == 1, job.standing()
