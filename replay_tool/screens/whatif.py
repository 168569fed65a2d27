"""`whatif` as text: what changes, and a table when there are several logs."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmr.replay_tool.sentences import count, duration
from lmr.replay_tool.verbs.whatif import Change, Outcome, WhatIf, WhatIfs


def show(found: WhatIfs, console: Console) -> None:
    """Prints each change, or a table of all logs and the sums."""
    if len(found.logs) == 1:
        _one(found.logs[0], console)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("log", "decisions", "same", "first change", "steps lost", "standbys", "recovery"):
        table.add_column(column, overflow="fold")
    for item in found.logs:
        table.add_row(*_row(item))
    console.print(table)
    console.print()
    recovery = f"{_signed(found.recovery_ms_delta)} of recovery"
    sums = f"{found.lost_steps_delta:+,} steps lost, {found.standbys_delta:+} standbys, {recovery}"
    console.print(
        Text(f"{found.changed} of {count(len(found.logs), 'log')} change: {sums} at the first changes", style="bold")
    )
    if found.unreadable:
        console.print(Text(f"{count(found.unreadable, 'log')} could not be read", style="yellow"))
    console.print(Text("Behind its first change nothing is known of a log: the rest of it would not have happened so."))


def _row(item: WhatIf) -> tuple[str, ...]:
    if item.unreadable:
        return item.where, "–", "–", item.unreadable.removeprefix(f"{item.where}: "), "", "", ""
    same = str(item.same + item.told_differently)
    if item.change is None:
        return item.where, str(item.decisions), same, "none", "", "", ""
    old, new = item.change.recorded, item.change.instead
    what = f"seq {item.change.seq}: {old.action if old else 'no decision'} → {new.action if new else 'no decision'}"
    return (
        item.where, str(item.decisions), same, what,
        _pair(old, new, "lost_steps"), _pair(old, new, "standbys_used"),
        f"{duration(old.recovery_ms if old else 0)} → {duration(new.recovery_ms if new else 0)}",
    )  # fmt: skip


def _pair(old: Outcome | None, new: Outcome | None, what: str) -> str:
    values = [getattr(side, what) if side is not None else 0 for side in (old, new)]
    return " → ".join("?" if value is None else str(value) for value in values)


def _one(item: WhatIf, console: Console) -> None:
    for note in item.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(f"run {item.run_id}: {count(item.decisions, 'recorded decision')}", style="bold"))
    for key, (old, new) in item.policy_changes.items():
        console.print(Text(f"  policy {key}: {old} → {new}"))
    if item.without:
        console.print(Text(f"  without seq {', '.join(str(seq) for seq in item.without)}"))
    console.print(Text(f"{count(item.same, 'decision')} the same in every word"))
    if item.told_differently:
        console.print(
            Text(f"{count(item.told_differently, 'decision')} with the same effect, told or timed differently")
        )
    if item.change is None:
        console.print(Text("Nothing changes.", style="bold green"))
        return
    _change(item, item.change, console)


def _change(item: WhatIf, change: Change, console: Console) -> None:
    place = f"incident {change.incident}, " if change.incident else ""
    console.print()
    console.print(Text(f"Changed at {place}seq {change.seq}:", style="bold yellow"))
    console.print(Text(f"  recorded  {_told(change.recorded)}"))
    instead = _told(change.instead)
    if change.instead is None and change.waits_for:
        instead += f" yet; the engine would wait for {change.waits_for}"
    console.print(Text(f"  instead   {instead}"))
    if change.apart:
        console.print(Text(f"            {change.apart}"))
    console.print()
    later = f": {count(item.not_judged, 'later decision')} not judged" if item.not_judged else ""
    console.print(Text(f"Unknown from here (seq {item.unknown_from_seq}){later}.", style="bold"))
    console.print(Text("What follows in the log followed from the recorded decision."))


def _told(side: Outcome | None) -> str:
    if side is None:
        return "no decision"
    figures = []
    if side.lost_steps is not None:
        figures.append(f"{count(side.lost_steps, 'step')} lost")
    if side.standbys_used:
        figures.append(count(side.standbys_used, "standby", "standbys"))
    if side.recovery_ms is not None:
        figures.append(f"about {duration(side.recovery_ms)} by this log's own recoveries")
    elif side.action in ("restart", "replace"):
        figures.append("recovery time unknown: the log has none of this kind")
    return f"{side.headline} ({', '.join(figures)})" if figures else side.headline


def _signed(ms: int) -> str:
    return f"{'-' if ms < 0 else '+'}{duration(abs(ms))}"
