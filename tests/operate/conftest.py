"""Event logs of recorded incidents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lmr.replay_tool.main import main as lmr_replay

CORPUS = Path(__file__).parents[1] / "replay_tool" / "corpus"


@pytest.fixture
def recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Makes an event log of recorded incidents, each a run."""

    def make(*stories: str) -> str:
        for story in stories:
            assert lmr_replay(["import", str(CORPUS / f"{story}.jsonl"), "--into", str(tmp_path / "events.db")]) == 0
        capsys.readouterr()
        return str(tmp_path / "events.db")

    return make
