"""A state as text."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmr.replay_tool.moment import utc
from lmr.replay_tool.sentences import count, duration, listing
from lmr.replay_tool.verbs.state import StateAt

_MOST = 40


def show(found: StateAt, console: Console) -> None:
    """Prints generation, incident, nodes, steps and deadlines."""
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(f"run {found.run_id} after seq {found.seq} ({utc(found.at_ms)})", style="bold"))
    console.print(Text(_training(found)))
    if found.incident is not None:
        facts = ", ".join(f"{item['kind']} (seq {item['seq']})" for item in found.incident["facts"]) or "none"
        waiting = f"; waits for {listing(found.incident['awaiting'])} to answer" if found.incident["awaiting"] else ""
        console.print(Text(f"incident {found.incident['incident']} is open: {facts}{waiting}"))
    for name, due_ms in found.deadlines:
        console.print(Text(f"deadline {name} is due in {duration(max(0, due_ms - found.at_ms))}"))
    console.print(Text(f"policy {found.policy_digest[:12]}, head {found.head_hash[:16]}", style="dim"))
    _nodes(found, console)
    _steps(found, console)


def _training(found: StateAt) -> str:
    if found.closed is not None:
        return f"the run is closed: {found.closed}"
    if found.generation < 0:
        return "no generation yet"
    doing = (
        "holds"
        if found.hold_since_ms is not None
        else "trains"
        if found.resumed or found.generation == 0
        else "is being restored"
    )
    highest = f", highest step named {found.highest_step:,}" if found.highest_step is not None else ""
    used = count(found.recoveries, "recovery", "recoveries")
    return f"generation {found.generation} {doing}, began with step {found.generation_step or 0:,}{highest}; {used}"


def _nodes(found: StateAt, console: Console) -> None:
    table = _table("node", "role", "slot", "incarnation", "domain", "blamed", "why")
    for node in found.nodes[:_MOST]:
        slot = "" if node.slot is None else str(node.slot)
        table.add_row(
            node.node,
            node.role,
            slot,
            node.incarnation or "",
            node.failure_domain or "",
            str(node.blamed),
            node.why or "",
        )
    console.print()
    console.print(table)
    if len(found.nodes) > _MOST:
        console.print(Text(f"... and {count(len(found.nodes) - _MOST, 'more node')} (--json lists all)", style="dim"))


def _steps(found: StateAt, console: Console) -> None:
    if not found.steps:
        return
    table = _table("step", "generation", "complete", "certified", "check", "copies", "slots", "durable")
    for step in found.steps[:_MOST]:
        table.add_row(
            f"{step.step:,}", str(step.generation), _yes(step.complete), _yes(step.certified), step.checked,
            str(step.copies), str(step.slots), _yes(step.durable),
        )  # fmt: skip
    console.print()
    console.print(table)
    if found.first_bad_step is not None:
        console.print(Text(f"known bad from step {found.first_bad_step:,} on", style="red"))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
