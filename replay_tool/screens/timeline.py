"""The timeline as text."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmr.replay_tool.moment import since, utc
from lmr.replay_tool.sentences import count, duration, listing, ranks
from lmr.replay_tool.verbs.timeline import IncidentLine, Timeline

_STYLE = {
    "plan_committed": "bold",
    "run_closed": "bold",
    "deadline_passed": "dim",
    "node_lost": "red",
    "node_left": "red",
}


def show(found: Timeline, console: Console, *, every_node: bool = False) -> None:
    """Prints head, incidents, generations, nodes, then the facts in order."""
    length = duration(found.end_ms - found.start_ms)
    console.print(Text(f"run {found.run_id}", style="bold"), Text(f"{count(found.records, 'record')} over {length}"))
    ending = f"closed, {found.outcome}: {found.outcome_reason}" if found.outcome else "not closed"
    console.print(Text(f"from {utc(found.start_ms)} · {ending} · {count(found.lost_steps, 'step')} lost"))
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"))
    for name, number in found.unknown_types.items():
        console.print(Text(f"note: {count(number, 'event')} of the unknown type {name!r}", style="yellow"))
    for incident in found.incidents:
        _incident(incident, found.start_ms, console)
    _generations(found, console)
    _nodes(found, console, every_node)
    _facts(found, console)


def _incident(item: IncidentLine, start_ms: int, console: Console) -> None:
    blamed = listing(item.nodes) if item.nodes else "nobody"
    who = f" ({ranks(item.ranks)})" if item.ranks else ""
    console.print()
    console.print(
        Text(f"incident {item.incident}: {item.cause}, {item.confidence}; blamed: {blamed}{who}", style="bold")
    )
    for plan in item.plans:
        console.print(
            Text(f"  plan {plan.plan_id[:8]} at {since(start_ms, plan.at_ms)}, seq {plan.seq}: {plan.headline}")
        )
    phases = [f"{name.replace('_', ' ')} +{duration(ms)}" for name, ms in item.lengths_ms.items() if name != "total"]
    total = f" · {duration(item.lengths_ms['total'])} in all" if "total" in item.lengths_ms else ""
    if phases:
        console.print(Text(f"  detected → {' → '.join(phases)}{total}"))
    console.print(
        Text(f"  {count(item.lost_steps, 'step')} lost, {count(item.standbys_used, 'standby', 'standbys')} used")
    )
    for fact in item.evidence:
        console.print(Text(f"  {since(start_ms, fact.at_ms):>12}  seq {fact.seq}: {fact.text}", style="dim"))


def _generations(found: Timeline, console: Console) -> None:
    if not found.generations:
        return
    table = _table("generation", "from", "to", "steps", "slots")
    for item in found.generations:
        to = since(found.start_ms, item.to_ms) if item.to_ms is not None else "now"
        steps = f"{item.first_step} – {'?' if item.last_step is None else item.last_step}"
        names = [f"{slot}:{node}" for slot, node in sorted(item.slots.items())]
        shown = " ".join(names[:12]) + (f" … {len(names) - 12} more" if len(names) > 12 else "")
        table.add_row(str(item.generation), since(found.start_ms, item.from_ms), to, steps, shown)
    console.print()
    console.print(table)


def _nodes(found: Timeline, console: Console, every_node: bool) -> None:
    shown = [item for item in found.nodes if every_node or len(found.nodes) <= 32 or item.incidents]
    if not shown:
        return
    table = _table("node", "lives", "blamed in", "roles")
    for item in shown:
        roles = []
        for span in item.spans:
            place = f" g{span.generation} slot {span.slot}" if span.generation is not None else ""
            roles.append(f"{span.role}{place} from {since(found.start_ms, span.from_ms)}")
        blamed = ", ".join(str(number) for number in item.incidents) or "–"
        table.add_row(item.node, str(len(item.incarnations)), blamed, "; ".join(roles) or "–")
    console.print()
    console.print(table)
    if len(shown) < len(found.nodes):
        console.print(
            Text(f"{len(found.nodes) - len(shown)} other nodes were never blamed (--all-nodes lists them)", style="dim")
        )


def _facts(found: Timeline, console: Console) -> None:
    table = _table("seq", "time", "what")
    table.columns[0].justify = "right"
    table.columns[1].justify = "right"
    for fact in found.facts:
        style = _STYLE.get(fact.type, "")
        table.add_row(str(fact.seq), since(found.start_ms, fact.at_ms), Text(fact.text, style=style))
    console.print()
    console.print(table)
    quiet = sum(number for name, number in found.counts.items() if name.startswith("checkpoint_"))
    checks = found.counts.get("replay_checked", 0)
    console.print(Text(f"besides: {count(quiet, 'checkpoint fact')}, {count(checks, 'replay check')}", style="dim"))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
