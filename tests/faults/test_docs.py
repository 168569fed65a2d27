"""docs/faults.md lists every effect in the words of the code."""

import re
from pathlib import Path

from lmr.integrations.faults.campaign import BitFlip, Drift, Lasting, Partition, Plain, Targeted, Termination
from lmr.integrations.faults.effects import EFFECTS

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
