"""`diff`: two logs, or one log at two points."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

from lmr.engine.events import DECISIONS
from lmr.engine.record import Record
from lmr.replay_tool.as_json import plain
from lmr.replay_tool.errors import Usage
from lmr.replay_tool.sentences import sentence
from lmr.replay_tool.source import Log
from lmr.replay_tool.verbs.state import StateAt, fold_to, seen
from lmr.replay_tool.verbs.verify import first_difference

_NOT_COMPARED = {"run_id", "seq", "at_ms", "head_hash", "notes", "policy_digest", "deadlines"}
MOST_DIFFERENCES = 200


@dataclass(frozen=True)
class Line:
    """One record, in short."""

    seq: int
    type: str
    text: str


@dataclass(frozen=True)
class DecisionPair:
    """The n-th decision of each side; None where a side has fewer."""

    number: int
    same: bool
    a: Line | None
    b: Line | None


@dataclass(frozen=True)
class StateDifference:
    """One thing that differs between two states. None: not there."""

    what: str
    a: Any
    b: Any


@dataclass
class Diff:
    """What differs. `first` is the first record that does, with the first field that does."""

    kind: Literal["logs", "points"]
    a: str
    b: str
    same: bool = True
    common_records: int = 0
    first: tuple[Line | None, Line | None] | None = None
    first_field: tuple[str, Any, Any] | None = None
    decisions: list[DecisionPair] = field(default_factory=list)
    state: list[StateDifference] = field(default_factory=list)
    between: list[Line] = field(default_factory=list)


def diff_logs(a: Log, b: Log) -> Diff:
    """Compares two logs: the first record that differs, each decision, and the final states.

    What a record says is compared (type, source, times, data), not its hashes: those differ with the run's id.
    """
    found = Diff("logs", f"{a.where} ({a.run_id})", f"{b.where} ({b.run_id})")
    for left, right in zip_longest(a.records(), b.records()):
        if left is not None and right is not None and _says(left) == _says(right):
            found.common_records += 1
            continue
        found.same = False
        found.first = (_line(left), _line(right))
        if left is not None and right is not None:
            found.first_field = first_difference(_says(left), _says(right))
        break
    if found.same:
        return found
    pairs = zip_longest(_decisions(a), _decisions(b))
    for number, (left, right) in enumerate(pairs, start=1):
        same = left is not None and right is not None and left.text == right.text
        found.decisions.append(DecisionPair(number, same, left, right))
    found.state = state_differences(seen(fold_to(a, None)), seen(fold_to(b, None)))
    return found


def diff_points(log: Log, first: int, second: int) -> Diff:
    """Compares the state of one log at two points, and lists what came between.

    Raises:
        Usage: the points are the same or in the wrong order.
        NotInLog: no such seq.
    """
    if first >= second:
        raise Usage(f"diff: --at {first} must lie before --at {second}")
    found = Diff("points", f"{log.where} at {first}", f"{log.where} at {second}")
    found.state = state_differences(seen(fold_to(log, first)), seen(fold_to(log, second)))
    for record in log.records(after=first):
        if record.seq > second:
            break
        if len(found.between) < MOST_DIFFERENCES:
            found.between.append(Line(record.seq, record.event.type, sentence(record.event)))
    found.same = not found.state
    return found


def _says(record: Record) -> dict[str, Any]:
    """What a record says, without the run's id and what follows from it: two runs of one story are equal."""
    said = record.event.to_json()
    said["data"].pop("run_id", None)
    plan = said["data"].get("plan")
    if isinstance(plan, dict):
        said["data"]["plan"] = {key: value for key, value in plan.items() if key not in ("run_id", "plan_id")}
    else:
        said["event_id"] = record.event_id
    return {**said, "recorded_at_ms": record.recorded_at_ms}


def _line(record: Record | None) -> Line | None:
    return None if record is None else Line(record.seq, record.event.type, sentence(record.event))


def _decisions(log: Log) -> Iterator[Line]:
    for record in log.records():
        if record.event.type in DECISIONS:
            text = sentence(record.event)
            # The id covers the run's own id: two runs with one story would differ in nothing else.
            yield Line(record.seq, record.event.type, text.partition(": ")[2] if text.startswith("plan ") else text)


def state_differences(a: StateAt, b: StateAt) -> list[StateDifference]:
    """Everything that differs between two states, nodes and steps one by one."""
    found: list[StateDifference] = []
    for item in dataclasses.fields(StateAt):
        left, right = getattr(a, item.name), getattr(b, item.name)
        if item.name in _NOT_COMPARED or left == right:
            continue
        if item.name in ("nodes", "steps"):
            found += _rows(item.name, left, right)
        elif item.name == "policy":
            found += [
                StateDifference(f"policy {key}", left[key], right[key]) for key in left if left[key] != right[key]
            ]
        else:
            found.append(StateDifference(item.name.replace("_", " "), plain(left), plain(right)))
    return found[:MOST_DIFFERENCES]


def _rows(name: str, left: Any, right: Any) -> list[StateDifference]:
    def key(row: Any) -> Any:
        return row.node if name == "nodes" else (row.step, row.generation)

    def label(row: Any) -> str:
        return f"node {row.node}" if name == "nodes" else f"step {row.step} of generation {row.generation}"

    old, new = ({key(row): row for row in rows} for rows in (left, right))
    found = []
    for one in dict.fromkeys([*old, *new]):
        a, b = old.get(one), new.get(one)
        if a is None or b is None:
            row = a or b
            found.append(StateDifference(label(row), _short(a), _short(b)))
            continue
        for item in dataclasses.fields(a):
            before, after = getattr(a, item.name), getattr(b, item.name)
            if before != after:
                found.append(StateDifference(f"{label(a)} {item.name}", before, after))
    return found


def _short(row: Any) -> str | None:
    if row is None:
        return None
    if hasattr(row, "role"):
        return f"{row.role}{f' in slot {row.slot}' if row.slot is not None else ''}"
    return f"{'complete' if row.complete else 'incomplete'}, {row.checked}"
