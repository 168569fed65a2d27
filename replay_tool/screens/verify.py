"""A verification as text."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from lmr.replay_tool.sentences import count
from lmr.replay_tool.verbs.verify import Verification


def show(found: Verification, console: Console) -> None:
    """Prints every fault with recorded and recomputed value, or one line that all is well."""
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"))
    for fault in found.faults:
        console.print(Text(f"FAULT seq {fault.seq}: {fault.kind}: {fault.text}", style="red"))
        if fault.field is not None:
            console.print(Text(f"  field      {fault.field}"))
            console.print(Text(f"  recorded   {_short(fault.recorded)}"))
            console.print(Text(f"  recomputed {_short(fault.recomputed)}"))
        if fault.engine is not None:
            console.print(Text(f"  engine {fault.engine}, policy {(fault.policy_digest or '')[:12]}"))
    if found.faults_not_listed:
        console.print(Text(f"... and {count(found.faults_not_listed, 'more fault')}", style="red"))
    for name, number in found.unknown_types.items():
        console.print(Text(f"note: {count(number, 'event')} of the unknown type {name!r} kept", style="yellow"))
    if found.same_under_other_engine:
        text = (
            f"note: {count(found.same_under_other_engine, 'plan')} of another engine version agree with {found.engine}"
        )
        console.print(Text(text, style="yellow"))
    for item in found.still_due:
        console.print(Text(f"still due: {item}", style="yellow"))
    anchors = f", {count(found.anchors_checked, 'anchor')}" if found.anchors_checked else ""
    done = (
        f"{count(found.records, 'record')}, {count(found.decisions, 'decision')}, {count(found.deadlines, 'deadline')}"
    )
    verdict = "verified" if found.ok else "NOT verified"
    console.print(
        Text(f"run {found.run_id}: {done}{anchors}: {verdict}", style="bold green" if found.ok else "bold red")
    )
    console.print(Text(f"head {found.head_hash}", style="dim"))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:197]}..."
