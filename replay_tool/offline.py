"""Bare facts turned into the log they would have made: the engine's own offline run, under a policy if one is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lmr.engine.events import DECISIONS, PolicyChanged, RunOpened
from lmr.engine.offline import run_facts
from lmr.engine.policy import RecoveryPolicy
from lmr.engine.record import Record
from lmr.replay_tool.counterfactual import under_policy
from lmr.replay_tool.errors import Unreadable
from lmr.replay_tool.jsonl import Facts


def run_of(facts: Facts, path: Path) -> str:
    """The run that the facts open.

    Raises:
        Unreadable: no `run_opened` among them: nothing can be decided.
    """
    for event in facts.events:
        if isinstance(event.data, RunOpened):
            return event.data.run_id
    raise Unreadable(str(path), "no run_opened among the facts, so there is nothing to decide on")


def decided(facts: Facts, policy: RecoveryPolicy | None) -> Iterator[tuple[int, Record, bool]]:
    """Every record of the log the facts make: facts consumed before it, the record, whether it is a decision.

    Args:
        facts: what was read.
        policy: in place of the one opened with and of every later change of it; None keeps them.
    """
    events = [
        under_policy(event, policy)
        if policy is not None and isinstance(event.data, RunOpened | PolicyChanged)
        else event
        for event in facts.events
    ]
    for consumed, record in run_facts(zip(facts.ids, events, strict=True)):
        yield consumed, record, record.event.type in DECISIONS


def decided_records(facts: Facts) -> Iterator[Record]:
    """The whole log, decided under its own policy."""
    return (record for _, record, _ in decided(facts, None))
