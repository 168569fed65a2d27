"""torchelastic error files: the JSON that `@record` writes to `TORCHELASTIC_ERROR_FILE`, one a failed worker.

The rank is not in the file. torchrun's folders are `RUN_ID_xxxx/attempt_N/LOCAL_RANK/error.json`; with the node's slot
known (a folder or file named like the node, or one node in all) the global rank follows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from lmr.engine.events import WorkerExited
from lmr.replay_tool.importers.exits import error_of
from lmr.replay_tool.importers.sighting import UNPLACED, Gleaned, Job, Sighting

_SIGNAL = re.compile(r"Signal (\d+) \(\w+\) received by PID")
_RANK_IN_NAME = re.compile(r"rank[_-]?(\d+)")


def recognizes(head: bytes) -> bool:
    """True for `{"message": {"message": ..., "extraInfo": ...}}` or `{"message": "Signal ..."}`."""
    text = head.lstrip()
    return text.startswith(b'{"message"') or (text.startswith(b"{") and b'"extraInfo"' in text and b'"message"' in text)


def read(path: Path, job: Job) -> Gleaned:
    """The exit one error file tells."""
    gleaned = Gleaned()
    document = json.loads(path.read_text("utf-8"))
    message, details = _parts(document)
    seconds = str(details.get("timestamp", ""))
    at_ms = int(seconds) * 1000 if seconds.isdecimal() else None
    node = job.node_in(path.parts) or (job.nodes[0] if len(job.nodes) == 1 else None)
    rank = _rank(path, job, node)
    if rank is None:
        gleaned.notes.append(f"{path}: whose error this is cannot be told; put it under a folder named like its node")
        return gleaned
    signal = _SIGNAL.search(message)
    number = int(signal[1]) if signal else None
    callstack = details.get("py_callstack")
    data = WorkerExited(
        generation=0,
        node=node or UNPLACED,
        rank=rank,
        exit_code=None if number is not None else _exit_code(document),
        signal=number,
        error=error_of(f"{callstack or ''}\n{message}", number),
    )
    gleaned.sightings.append(Sighting(data, at_ms, node, str(path)))
    if node is not None:
        gleaned.saw_rank(node, rank)
    return gleaned


def _parts(document: Any) -> tuple[str, dict[str, Any]]:
    found = document.get("message", "") if isinstance(document, dict) else ""
    if isinstance(found, dict):
        details = found.get("extraInfo")
        return str(found.get("message", "")), details if isinstance(details, dict) else {}
    return str(found), {}


def _exit_code(document: dict[str, Any]) -> int:
    found = document["message"]
    code = found.get("errorCode") if isinstance(found, dict) else None
    return code if isinstance(code, int) else 1


def _rank(path: Path, job: Job, node: str | None) -> int | None:
    named = _RANK_IN_NAME.search(path.name)
    if named:
        return int(named[1])
    local = path.parent.name
    first = job.first_rank(node)
    if local.isdecimal() and first is not None:
        return first + int(local)
    return int(local) if local.isdecimal() and len(job.nodes) <= 1 else None
