"""Differences as text: `-` is the first side, `+` the second."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from lmr.replay_tool.sentences import count
from lmr.replay_tool.verbs.diff import Diff, Line


def show(found: Diff, console: Console) -> None:
    """Prints what differs, or that nothing does."""
    console.print(Text(f"- {found.a}", style="red"))
    console.print(Text(f"+ {found.b}", style="green"))
    if found.same:
        console.print(Text("no difference", style="bold"))
        return
    if found.kind == "logs":
        _logs(found, console)
    console.print()
    console.print(Text("state", style="bold"))
    for item in found.state:
        console.print(Text(f"  {item.what}: {_value(item.a)} → {_value(item.b)}"))
    if not found.state:
        console.print(Text("  the same"))
    if found.between:
        console.print()
        console.print(Text(f"{count(len(found.between), 'record')} between", style="bold"))
        for line in found.between:
            console.print(Text(f"  seq {line.seq}: {line.text}"))


def _logs(found: Diff, console: Console) -> None:
    console.print()
    console.print(Text(f"{count(found.common_records, 'record')} in common, then", style="bold"))
    if found.first is not None:
        for sign, line in zip("-+", found.first, strict=True):
            console.print(Text(f"  {sign} {_line(line)}"))
    if found.first_field is not None:
        at, a, b = found.first_field
        console.print(Text(f"  {at}: {_value(a)} → {_value(b)}"))
    console.print()
    console.print(Text("decisions", style="bold"))
    for pair in found.decisions:
        if pair.same:
            console.print(Text(f"  {pair.number}  = {pair.a.text if pair.a else ''}"))
            continue
        console.print(Text(f"  {pair.number}  - {_line(pair.a)}"))
        console.print(Text(f"  {' ' * len(str(pair.number))}  + {_line(pair.b)}"))


def _line(line: Line | None) -> str:
    return "nothing: this side has ended" if line is None else f"seq {line.seq}: {line.text}"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:157]}..."
