"""torchrun's own log: the failure report it prints when it gives up: time, host, rank and exit code of each worker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from lmr.engine.events import WorkerExited
from lmr.replay_tool.importers.exits import error_of
from lmr.replay_tool.importers.sighting import Gleaned, Job, Sighting
from lmr.replay_tool.importers.stamps import stamp_ms

_ITEM = re.compile(r"^\[\d+\]:$")
_FIELD = re.compile(r"^(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)$")
_RANK = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_CODE = re.compile(r"(-?\d+)")
_PREFIX = re.compile(r"^(?:\d+\.\d+s\s+\d+\s+|\[[\w.-]+\]:?\s+)?")
_RULE = re.compile(r"^[=-]{20,}$")


def recognizes(head: bytes) -> bool:
    """True when torchrun's report is in the file's beginning or end."""
    return b"(first observed failure)" in head


def read(path: Path, job: Job) -> Gleaned:
    """The exits of every report in the log."""
    gleaned = Gleaned()
    for number, fields in _items(path):
        rank = _RANK.search(fields.get("rank", ""))
        code = _CODE.search(fields.get("exitcode", ""))
        host = fields.get("host", "").strip()
        if rank is None or code is None or not host:
            continue
        value = int(code[1])
        signal = -value if value < 0 else None
        text = fields.get("traceback", "")
        data = WorkerExited(
            generation=0,
            node=host,
            rank=int(rank[1]),
            exit_code=value if signal is None else None,
            signal=signal,
            error=error_of("" if text.startswith("To enable traceback") else text, signal),
        )
        gleaned.sightings.append(Sighting(data, stamp_ms(fields.get("time", ""), job.year), host, f"{path}:{number}"))
        gleaned.saw_rank(host, int(rank[1]))
        if int(rank[2]) == 0 and int(rank[1]) > 0:
            gleaned.notes.append(f"{host}: first rank {rank[1]}")
    # The report lists the root cause last: the order of the run is the order of time.
    gleaned.sightings.sort(key=lambda item: item.at_ms or 0)
    return gleaned


def _items(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    fields: dict[str, str] | None = None
    start, last = 0, ""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, raw in enumerate(file, start=1):
            line = _PREFIX.sub("", raw.rstrip("\n"), count=1).strip()
            if _ITEM.match(line):
                if fields:
                    yield start, fields
                fields, start, last = {}, number, ""
            elif fields is not None and _RULE.match(line):
                yield start, fields
                fields = None
            elif fields is not None and (match := _FIELD.match(line)):
                last = match[1]
                fields[last] = match[2]
            elif fields is not None and last == "traceback":
                fields[last] += f"\n{line}"
    if fields:
        yield start, fields
