"""docs/scout.md says of each detector what it cannot see and how it is switched off; thresholds give their reason."""

import re
from pathlib import Path

from pydantic import BaseModel

from lmr.engine import events
from lmr.integrations.scout.replay_policy import ReplayPolicy

DOCS = (Path(__file__).parents[2] / "docs" / "scout.md").read_text()
ROWS = [
    [cell.strip() for cell in row.strip("|").split(" | ")]
    for row in re.findall(r"^\| `.+\|$", DOCS.partition("## What is found")[2].partition("\n## ")[0], re.MULTILINE)
]
UNIT = re.compile(r"_(ms|s|bytes|pct|permille|hundredths)$")
COUNTS = {"factor", "windows", "steps", "tensors", "checks", "seeds", "samples"}


def switches() -> dict[str, bool]:
    """Every true-or-false key below `[replay]`, with its default."""
    found = {}
    for table, field in ReplayPolicy.model_fields.items():
        value = field.default
        tables = {f"{table}.{key}": at for key, at in value} if isinstance(value, BaseModel) else {table: value}
        found |= {key: at for key, at in tables.items() if isinstance(at, bool)}
    return found


def test_each_fact_has_its_switch_and_its_boundary():
    assert {switch.strip("`") for _, switch, *_ in ROWS} == set(switches()) - {"pulse.enabled"}
    assert all(switches().values()), "everything is on unless somebody turns it off"
    known = {kind.type for kind in vars(events).values() if _is_event(kind)}
    for fact, _, when, named, unseen in ROWS:
        assert fact.split("`")[1] in known, fact
        assert "" not in (when, named, unseen), fact


def _is_event(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, events.EventData) and kind is not events.EventData


def test_each_threshold_has_a_unit_and_a_reason():
    """The name ends with the unit, or says what is counted; the description is what docs/api.md prints."""
    for table, field in ReplayPolicy.model_fields.items():
        if not isinstance(field.default, BaseModel):
            continue
        for key, setting in type(field.default).model_fields.items():
            if isinstance(setting.default, int) and not isinstance(setting.default, bool):
                assert UNIT.search(key) or key.rpartition("_")[2] in COUNTS, f"{table}.{key}"
                assert len(setting.description or "") > 30, f"{table}.{key}"
