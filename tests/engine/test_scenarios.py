"""Whole incidents as transcripts: which decisions fall, after which fact, and that no other does."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from transcript import decisions, difference, read_case

SCENARIOS = Path(__file__).parent.parent / "scenarios"
FOLDERS = [SCENARIOS, *(Path(extra) for extra in [os.environ.get("LMR_CASES")] if extra)]
CASES = sorted(case for folder in FOLDERS for case in folder.glob("*.case"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_decisions_of_the_transcript(path: Path) -> None:
    case = read_case(path)
    found = decisions(case)
    assert [after for after, _ in found] == [after for after, _ in case.expected], [
        (after, fields.get("action"), fields["reason"]) for after, fields in found
    ]
    for (after, want), (_, fields) in zip(case.expected, found, strict=True):
        assert difference(want, fields) is None, f"after fact {after}{difference(want, fields)}"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_each_transcript_tells_its_story(path: Path) -> None:
    case = read_case(path)
    assert len(case.story) >= 2
    assert any(line.startswith("source:") for line in case.story)


def test_there_are_more_than_a_hundred() -> None:
    assert len(list(SCENARIOS.glob("*.case"))) > 100
