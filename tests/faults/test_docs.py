"""docs/faults.md lists every effect in the words of the code."""

import json
import re
import sys
from pathlib import Path

from lmr.integrations.faults.campaign import BitFlip, Drift, Lasting, Partition, Plain, Targeted, Termination
from lmr.integrations.faults.effects import EFFECTS

sys.path.insert(0, str(Path(__file__).parent))
from cases import GROUPS
from table import BEGIN, END, MEASURED, render

DOCS = (Path(__file__).parents[2] / "docs" / "faults.md").read_text()


def test_every_effect_is_described():
    section = DOCS.partition("## The effects")[2].partition("\n## ")[0]
    described = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", section, re.MULTILINE))
    assert described == {name: effect.text for name, effect in EFFECTS.items()}


def test_every_key_is_described():
    section = DOCS.partition("## Campaigns")[2].partition("\n## ")[0]
    keys = {key for row in re.findall(r"^\| (.+?) \|", section, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    kinds = (BitFlip, Drift, Lasting, Partition, Plain, Targeted, Termination)
    assert keys == {key for kind in kinds for key in kind.model_fields}


def test_the_table_is_what_the_run_wrote_and_has_every_effect():
    """Lines of the table are written by `python tests/faults/table.py` only."""
    measured = json.loads(MEASURED.read_text())
    assert DOCS.partition(BEGIN)[2].partition(END)[0] == f"\n{render(measured)}\n"
    assert {case.effect for group in GROUPS for case in group.cases} == set(EFFECTS)
