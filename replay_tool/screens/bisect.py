"""A bisection as text."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from lmr.replay_tool.moment import since
from lmr.replay_tool.sentences import count
from lmr.replay_tool.verbs.bisect import Bisected, Needed


def show(found: Bisected, console: Console) -> None:
    """Prints the fact that flipped the decision, and the facts without which it would be another."""
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(f"Plan {found.plan_id[:12]}, seq {found.seq}: {found.headline}", style="bold"))
    console.print()
    if found.flipped_by is not None:
        console.print(Text("Flipped by", style="bold"))
        console.print(Text(f"  {_fact(found.flipped_by, found.start_ms)}"))
        console.print(Text(f"  before it: {found.flipped_by.instead}"))
        console.print()
    if not found.smallest and not found.complete:
        console.print(Text("The limit ended the search before it found a set of facts that changes it.", style="bold"))
    elif not found.smallest:
        console.print(Text("No set of facts that may be left out changes it.", style="bold"))
    elif found.single:
        console.print(Text("Without any one of these it would have been another", style="bold"))
        for item in found.smallest:
            console.print(Text(f"  {_fact(item, found.start_ms)}"))
            console.print(Text(f"    without it: {item.instead}"))
    else:
        console.print(
            Text(
                f"No single fact decides; without these {len(found.smallest)} together it would have been another",
                style="bold",
            )
        )
        for item in found.smallest:
            console.print(Text(f"  {_fact(item, found.start_ms)}"))
        console.print(Text(f"  without them: {found.smallest[0].instead}"))
    console.print()
    tried = "tried" if found.complete else "to try"
    ending = "" if found.complete else "; the limit was reached, so there may be more (--limit)"
    console.print(
        Text(f"{count(found.candidates, 'fact')} {tried} in {count(found.replays, 'replay')}{ending}", style="dim")
    )


def _fact(item: Needed, start_ms: int) -> str:
    return f"seq {item.seq} at {since(start_ms, item.at_ms)}, from {item.source}: {item.text}"
