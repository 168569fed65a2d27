"""Plays a stream of summaries to a RunScout, with evidence answered at once."""

from __future__ import annotations

from typing import Any

from lmr.engine.events import EventData
from lmr.integrations.scout.replay_policy import ReplayPolicy
from lmr.integrations.scout.run_scout import Ask, RunScout


def play(messages: list[tuple[int, dict[str, Any]]], world: int, policy: ReplayPolicy | None = None) -> list[EventData]:
    """Every fact, in order."""
    scout = RunScout(policy or ReplayPolicy())
    scout.begin(0, world)
    facts: list[EventData] = []
    for now_ms, message in messages:
        scout.heard(message, now_ms)
        for said in scout.tick(now_ms):
            if isinstance(said, Ask):
                answer = [{"name": f"rank{rank}", "digest": "0" * 64} for rank in said.ranks]
                scout.captured({"request": said.request, "ranks": list(said.ranks), "artifacts": answer})
            else:
                facts.append(said)
    return facts
