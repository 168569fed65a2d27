"""What the tests of `lmr-replay` share: the corpus, and running the command as the user does, in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # importlib mode does not; stories.py lives here
CORPUS = HERE / "corpus"


@dataclass(frozen=True)
class Ran:
    """What one run of the command gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Replay = Callable[..., Ran]


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Runs `lmr-replay` with the given words."""
    from lmr.replay_tool.main import main

    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: object) -> Ran:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def corpus() -> Path:
    """The folder of recorded incidents."""
    return CORPUS


@pytest.fixture
def database(tmp_path: Path, corpus: Path, replay: Replay) -> Path:
    """The node loss of the corpus in a SQLite file."""
    path = tmp_path / "events.db"
    assert replay("import", corpus / "node-loss.jsonl", "--into", path).code == 0
    return path
