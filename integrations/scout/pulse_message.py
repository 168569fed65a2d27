"""The `pulse` message of a node: its ranks' summaries, and what their numbers stand for."""

from __future__ import annotations

from typing import Any

from lmr.integrations.scout.page import Reading
from lmr.integrations.scout.summary import summarize, to_wire


def pulse_message(generation: int, readings: list[tuple[Reading, str]], now_ns: int) -> dict[str, Any]:
    """What `RunScout.heard` takes.

    Args:
        generation: of the worker group.
        readings: each rank's page and the state of its process.
        now_ns: of the monotonic clock the pages were written by.
    """
    groups: dict[str, Any] = {}
    calls: dict[str, Any] = {}
    for reading, _ in readings:
        groups |= reading.about.get("groups", {})
        known = reading.about.get("calls", {})
        for group in reading.groups:
            name = str(group.fingerprint)
            if name in known:
                calls[name] = known[name]
    ranks = [to_wire(summarize(reading, state, now_ns)) for reading, state in readings]
    return {"generation": generation, "ranks": ranks, "groups": groups, "calls": calls}
