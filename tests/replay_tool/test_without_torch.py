"""An analyst's laptop has no torch: the tool neither needs nor touches it, nor the training side of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CORPUS, HERE

ROOT = HERE.parents[1]

BLOCKED = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "xxhash", "blake3") or name.startswith("lmr.integrations"):
            raise AssertionError(f"the tool imports {name}")
sys.meta_path.insert(0, Refuse())
from lmr.replay_tool.main import main
log, folder = sys.argv[1:]
runs = [
    ["verify", log], ["timeline", log], ["explain", log], ["state", log], ["bisect", log],
    ["whatif", log, "--without", "34"], ["diff", log, "--at", "5", "--at", "9"],
    ["report", log, "-o", folder + "/r.html"], ["export", log, "-o", folder + "/r.lmrb"],
    ["export", log, "-o", folder + "/r.json"], ["import", folder + "/r.lmrb", "--into", folder + "/r.db"],
    ["export", log, "--format", "facts", "-o", folder + "/f.jsonl"], ["decide", folder + "/f.jsonl", "--json"],
    ["completion", "bash"],
]
for words in runs:
    code = main(words)
    assert code in (0, 1), words
import pkgutil, importlib, lmr.replay_tool
for module in pkgutil.walk_packages(lmr.replay_tool.__path__, "lmr.replay_tool."):
    importlib.import_module(module.name)
assert "torch" not in sys.modules
"""


def test_no_verb_imports_torch(tmp_path: Path) -> None:
    """Every verb runs, and every module of the tool imports, in a process that refuses torch and `lmr.integrations`."""
    command = [sys.executable, "-c", BLOCKED, str(CORPUS / "node-loss.jsonl"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_fresh_environment_without_extras(tmp_path: Path) -> None:
    """`pip install .` alone brings a working `lmr-replay`, report assets included, and no torch."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
    copy = tmp_path / "source"
    ignored = ["--exclude=.venv", "--exclude=.git", "--exclude=build", "--exclude=*.egg-info", "--exclude=.hypothesis"]
    packed = subprocess.run(["tar", "-c", *ignored, "."], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    copy.mkdir()
    subprocess.run(["tar", "-x"], cwd=copy, input=packed, check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", str(copy)]
    subprocess.run(pip, check=True, timeout=600)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*words: object) -> str:
        command = [str(venv / "bin" / "lmr-replay"), *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    log = CORPUS / "node-loss.jsonl"
    assert "verified" in run("verify", log)
    assert run("explain", log).startswith("Plan ")
    run("report", log, "-o", "incident.html")
    assert "Swim lanes" in (tmp_path / "incident.html").read_text("utf-8")
    without = [str(venv / "bin" / "python"), "-c", "import torch"]
    assert subprocess.run(without, env=clean, capture_output=True, timeout=60).returncode != 0
