"""NVRx cycle info (`cycle_info.JOB.ATTEMPT.CYCLE`): which nodes trained and stood by in each cycle of `ft_launcher`."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from lmr.engine.events import NodeLost
from lmr.replay_tool.errors import Unreadable
from lmr.replay_tool.importers.hostlist import hosts
from lmr.replay_tool.importers.sighting import Gleaned, Job, Sighting
from lmr.replay_tool.importers.stamps import stamp_ms


def recognizes(head: bytes) -> bool:
    """True for a cycle info document."""
    return b'"cycle_number"' in head and b'"active_nodes"' in head


def together(paths: list[Path], job: Job) -> Gleaned:
    """Placement of the first cycle, and each node that a later cycle no longer has."""
    gleaned = Gleaned()
    cycles = sorted((_load(path) for path in paths), key=lambda item: (item["attempt_index"], item["cycle_number"]))
    first = cycles[0]
    gleaned.nodes = hosts(first["active_nodes"])
    gleaned.standby = hosts(first.get("standby_nodes") or "")
    for before, after in pairwise(cycles):
        here = {*hosts(after["active_nodes"]), *hosts(after.get("standby_nodes") or "")}
        gone = [name for name in hosts(before["active_nodes"]) if name not in here]
        ended = stamp_ms(before.get("cycle_end_time") or after["cycle_start_time"], job.year)
        where = f"{before['path']} and the next cycle"
        for name in gone:
            data = NodeLost(node=name, incarnation=name, reason="not_in_next_cycle")
            gleaned.sightings.append(Sighting(data, ended, name, where))
        if not gone:
            number = before["cycle_number"]
            gleaned.notes.append(
                f"cycle {number} ended with all its nodes; its log says why: {before.get('cycle_log_file')}"
            )
    return gleaned


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
        return {
            **found,
            "attempt_index": int(found["attempt_index"]),
            "cycle_number": int(found["cycle_number"]),
            "path": path,
        }
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(str(path), f"no cycle info: {error}") from error
