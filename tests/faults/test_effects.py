"""Faults through the front door: `lmr inject CAMPAIGN -- torchrun ...`, in a real training of four ranks."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cases import GROUPS, Group
from measuring import measure
from table import MEASURED

from lmr.replay_tool.main import main as lmr_replay

pytestmark = pytest.mark.torchrun
OUTCOMES = json.loads(MEASURED.read_text())["outcomes"]
MEASURED_GROUPS = [group for group in GROUPS if all(case.name in OUTCOMES for case in group.cases)]
"""Those the table of docs/faults.md has."""


def check(group: Group, folder: Path) -> None:
    """Every case of a group comes to what its line says."""
    for case, outcome in zip(group.cases, measure(group, folder), strict=True):
        assert outcome.wrong == 0, outcome
        assert (outcome.detected is not None) == bool(case.facts), outcome
        assert outcome.right == (case.names and bool(case.facts)), outcome
        assert outcome.cause == case.cause, outcome
        if case.cause is not None:
            assert outcome.resume_ms is not None, outcome
        assert outcome.equal, outcome
    assert lmr_replay(["verify", str(folder / group.name / "events.db")]) == 0


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", MEASURED_GROUPS, ids=lambda group: group.name)
def test_each_effect_is_found_where_it_is_and_undone(group, tmp_path):
    """One training, one fault after the other; what follows each is bitwise what an undisturbed run computes."""
    check(group, tmp_path)
