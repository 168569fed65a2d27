"""The same facts give byte-identical logs under every hash seed and every supported interpreter at hand."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import interpreter

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
import hashlib, json, pathlib, sys
from lmr.engine.events import Event
from lmr.engine.offline import run_facts
total = hashlib.sha256()
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.case")):
    facts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    for _, record in run_facts(Event.parse(fact) for fact in facts):
        total.update(record.body + record.hash.encode())
print(total.hexdigest())
"""


def _digest(python: str, seed: str, extra: dict[str, str] | None = None) -> str:
    env = {**os.environ, **(extra or {}), "PYTHONHASHSEED": seed}
    command = [python, "-c", PROGRAM, str(ROOT / "tests" / "scenarios")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.strip()


def test_hash_seeds() -> None:
    first = _digest(sys.executable, "0")
    assert len(first) == len(hashlib.sha256().hexdigest())
    assert first == _digest(sys.executable, "1")


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_interpreters(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    inside = str(tmp_path / "venv" / "bin" / "python")
    installed = subprocess.run(
        [inside, "-m", "pip", "install", "--quiet", "pydantic>=2.7,<3"], capture_output=True, timeout=240
    )
    if installed.returncode:
        pytest.skip(f"pydantic cannot be installed for Python {version} here")
    assert _digest(inside, "0", {"PYTHONPATH": str(ROOT / "src")}) == _digest(sys.executable, "0")
