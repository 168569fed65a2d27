"""An explanation as prose."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from lmr.replay_tool.moment import since, utc
from lmr.replay_tool.verbs.explain import Explanation
from lmr.replay_tool.verbs.why_not import WhyNot


def show(found: Explanation, console: Console) -> None:
    """Prints what was decided, why, on which facts, what was not done and why not."""
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(f"Plan {found.plan_id[:12]} of run {found.run_id}: {found.headline}.", style="bold"))
    console.print(Text(f"Committed at {since(found.start_ms, found.at_ms)} ({utc(found.at_ms)}) as seq {found.seq}."))
    _section(console, "Why", [found.blamed, found.rule, *([found.economics] if found.economics else [])])
    facts = [
        f"seq {item.seq} at {since(found.start_ms, item.at_ms)}, from {item.source}: {item.text}."
        for item in found.facts
    ]
    _section(console, "Facts it rests on", facts or ["None: this plan follows from the nodes that joined."])
    _section(console, "Who runs now", found.placement)
    state = [found.state]
    if found.sources and found.plan.action != "start":
        state.append(f"Read: {'; '.join(found.sources)}.")
    _section(console, "State", state)
    rejected = [f"Not {item.option}: {item.text}{_seqs(item.evidence)}." for item in found.rejected]
    _section(console, "What was not done", rejected or ["No alternative was weighed."])
    console.print()
    text = (
        f"Decided through seq {found.decided_through} under policy {found.policy_digest[:12]} by engine {found.engine}."
    )
    console.print(Text(text, style="dim"))


def show_why_not(found: WhyNot, console: Console) -> None:
    """Prints the answer to one `--why-not`."""
    console.print()
    console.print(Text(f"Why not {found.option}?", style="bold"))
    for line in found.answer:
        console.print(Padding(Text(line), (0, 0, 0, 2)))


def _seqs(seqs: tuple[int, ...]) -> str:
    return f" (seq {', '.join(str(seq) for seq in seqs)})" if seqs else ""


def _section(console: Console, title: str, lines: list[str] | tuple[str, ...]) -> None:
    console.print()
    console.print(Text(title, style="bold"))
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2)))
