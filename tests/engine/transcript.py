"""Reads a case transcript: `#` lines tell the story, JSON lines are facts, `=>` lines the decisions that must fall."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmr.engine.events import Event
from lmr.engine.offline import decide_facts

RECOVERIES = ("restart", "replace", "hold", "halt")


@dataclass(frozen=True)
class Case:
    name: str
    story: tuple[str, ...]
    facts: tuple[dict[str, Any], ...]
    expected: tuple[tuple[int, dict[str, Any]], ...]


def read_case(path: Path) -> Case:
    story, facts, expected = [], [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("=>"):
            expected.append((len(facts), json.loads(line[2:])))
        elif line.startswith("#"):
            story.append(line[1:].strip())
        elif line.strip():
            facts.append(json.loads(line))
    return Case(path.stem, tuple(story), tuple(facts), tuple(expected))


def decisions(case: Case) -> list[tuple[int, dict[str, Any]]]:
    """Every decision and the number of facts before it, plans flattened, without the close that follows a halt."""
    found: list[tuple[int, dict[str, Any]]] = []
    halted: str | None = None
    for after, record in decide_facts(Event.parse(fact, strict=False) for fact in case.facts):
        data = record.event.to_json()["data"]
        if halted is not None:
            assert (data["outcome"], data["reason"]) == ("halted", halted)
            halted = None
            continue
        fields = {"type": record.event.type, **data.get("plan", data)}
        if fields.get("action") in RECOVERIES:
            assert fields["evidence"], f"{fields['action']} after fact {after} rests on nothing"
            assert fields["rejected"], f"{fields['action']} after fact {after} rejected nothing"
        halted = fields["reason"] if fields.get("action") == "halt" else None
        found.append((after, fields))
    assert halted is None, f"the run was not closed after the halt {halted}"
    return found


def difference(want: Any, got: Any, path: str = "") -> str | None:
    """The first difference, None when `got` contains `want`. Nodes and ranks compare as sets, slots by slot."""
    if isinstance(want, dict) and isinstance(got, dict):
        inner = (difference(value, got.get(key), f"{path}.{key}") for key, value in want.items())
        return next((text for text in inner if text), None)
    if isinstance(want, list) and isinstance(got, list):
        if want and isinstance(want[0], dict):
            by_slot = {item["slot"]: item for item in got}
            inner = (difference(item, by_slot.get(item["slot"]), f"{path}[{item['slot']}]") for item in want)
            return next((text for text in inner if text), None)
        return None if sorted(want) == sorted(got) else f"{path}: expected {want}, got {got}"
    return None if want == got else f"{path}: expected {want!r}, got {got!r}"
