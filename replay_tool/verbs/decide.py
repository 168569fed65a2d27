"""`decide`: the engine over facts alone."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmr.engine.events import PlanCommitted
from lmr.engine.policy import RecoveryPolicy
from lmr.engine.record import Record
from lmr.replay_tool.jsonl import Facts, read_facts
from lmr.replay_tool.offline import decided, run_of


@dataclass(frozen=True)
class Decision:
    """One decision and how many facts had been consumed when it fell."""

    after: int
    record: Record

    def to_json(self) -> dict[str, Any]:
        """The line `decide --json` prints."""
        data = self.record.event.to_json()["data"]
        if isinstance(self.record.event.data, PlanCommitted):
            return {"after": self.after, "type": "plan_committed", "plan": data["plan"]}
        return {"after": self.after, "type": self.record.event.type, "data": data}


@dataclass(frozen=True)
class Decided:
    """What the engine decided, and the whole log it made of the facts."""

    where: str
    run_id: str
    facts: int
    decisions: tuple[Decision, ...]
    records: tuple[Record, ...]
    notes: tuple[str, ...]


def decide(where: str, *, policy: RecoveryPolicy | None = None) -> Decided:
    """Decides the facts of a JSONL file (`-`: standard input).

    Args:
        where: the file.
        policy: in place of what the facts say.

    Raises:
        Unreadable: naming the line at fault.
    """
    facts = _read(where)
    run_id = run_of(facts, Path(where))
    records: list[Record] = []
    decisions: list[Decision] = []
    for after, record, is_decision in decided(facts, policy):
        records.append(record)
        if is_decision:
            decisions.append(Decision(after, record))
    notes = [f"{number} events of the unknown type {name!r} were kept" for name, number in facts.unknown_types.items()]
    if facts.left_out:
        notes.append(f"{facts.left_out} decisions or deadlines in the file were left out and made anew")
    return Decided(where, run_id, len(facts.events), tuple(decisions), tuple(records), tuple(notes))


def _read(where: str) -> Facts:
    if where != "-":
        return read_facts(Path(where))
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write(sys.stdin.buffer.read())
        file.flush()
        return read_facts(Path(file.name))
