"""Decisions as text, one paragraph each."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from lmr.engine.events import PlanCommitted
from lmr.replay_tool.moment import since
from lmr.replay_tool.rules import blamed
from lmr.replay_tool.sentences import count, listing, sentence
from lmr.replay_tool.verbs.decide import Decided, Decision


def show(found: Decided, console: Console, *, into: str | None) -> None:
    """Prints each decision as it fell."""
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"))
    start_ms = found.records[0].recorded_at_ms if found.records else 0
    for decision in found.decisions:
        _one(decision, start_ms, console)
    console.print(
        Text(
            f"run {found.run_id}: {count(found.facts, 'fact')}, {count(len(found.decisions), 'decision')}", style="bold"
        )
    )
    if into:
        console.print(Text(f"written to {into}: lmr-replay explain {into} last"))


def _one(decision: Decision, start_ms: int, console: Console) -> None:
    record = decision.record
    at = f"after fact {decision.after}, {since(start_ms, record.recorded_at_ms)}"
    console.print(Text(f"{at}: {sentence(record.event)}", style="bold"))
    if isinstance(record.event.data, PlanCommitted):
        plan = record.event.data.plan
        console.print(Text(f"  {blamed(plan)}"))
        if plan.action in ("restart", "replace"):
            slots = listing(f"{item.slot}:{item.node}" for item in plan.assignments)
            console.print(Text(f"  {slots}; standby: {listing(plan.standby)}"))
