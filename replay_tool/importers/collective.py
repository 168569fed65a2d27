"""What NCCL's watchdog and gloo print: who waited in which collective, and who lost a peer.

A timeout names the victims. The ranks to blame are those of the group that did *not* wait in the same collective: they
never came to it. When every rank waited, or the job's size is not known, nobody is blamed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from lmr.engine.events import Collective, RankHung, WorkerExited
from lmr.replay_tool.importers.exits import error_of
from lmr.replay_tool.importers.sighting import UNPLACED, Gleaned, Job, Sighting
from lmr.replay_tool.importers.stamps import stamp_ms

_TIMEOUT = re.compile(
    r"\[Rank (?P<rank>\d+)\]\s+Watchdog caught collective operation timeout:\s+WorkNCCL\(SeqNum=(?P<seq>\d+), "
    r"OpType=(?P<op>\w+).*?ran for (?P<ms>\d+) milliseconds"
)
_GROUP = re.compile(r"\[PG ID (?P<id>\d+) PG GUID (?P<guid>[^\s]+)")
_RANK = re.compile(r"\[(?:rank|Rank )(\d+)\]")
_LOST_PEER = re.compile(
    r"(?P<what>gloo/transport/\S+\] .*?(?:Connection closed by peer|Connection reset by peer|Broken pipe).*"
    r"|DistBackendError: NCCL error.*|ncclRemoteError.*|NCCL communicator was aborted on rank \d+.*)"
)


@dataclass
class _Wait:
    at_ms: int | None
    stalled_ms: int
    where: str
    ranks: set[int] = field(default_factory=set)


def recognizes(head: bytes) -> bool:
    """True for text with a watchdog timeout or a lost peer."""
    marks = (b"Watchdog caught collective operation timeout", b"gloo/transport", b"NCCL error in", b"ncclRemoteError")
    return any(mark in head for mark in marks)


def read(path: Path, job: Job) -> Gleaned:
    """Hangs and lost peers that the text tells."""
    gleaned = Gleaned()
    waits: dict[tuple[str, int, str], _Wait] = defaultdict(lambda: _Wait(None, 0, ""))
    told: set[int] = set()
    node = job.node_in(path.parts)
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            at_ms = stamp_ms(line, job.year)
            match = _TIMEOUT.search(line)
            if match:
                group = _GROUP.search(line)
                wait = waits[(group["guid"].strip(")(") if group else "0", int(match["seq"]), match["op"])]
                wait.at_ms = at_ms if wait.at_ms is None else wait.at_ms
                wait.stalled_ms = max(wait.stalled_ms, int(match["ms"]))
                wait.where = wait.where or f"{path}:{number}"
                wait.ranks.add(int(match["rank"]))
                continue
            rank = _RANK.search(line)
            lost = _LOST_PEER.search(line)
            if rank and lost and int(rank[1]) not in told:
                told.add(int(rank[1]))
                gleaned.sightings.append(_echo(int(rank[1]), lost["what"], at_ms, node, f"{path}:{number}"))
    for (group_name, seq, op), wait in sorted(waits.items(), key=lambda item: item[1].at_ms or 0):
        gleaned.sightings.append(_hang(group_name, seq, op, wait, job))
    if not gleaned.sightings:
        gleaned.notes.append(f"{path}: no timeout and no lost peer that names its rank")
    return gleaned


def _echo(rank: int, text: str, at_ms: int | None, node: str | None, where: str) -> Sighting:
    data = WorkerExited(generation=0, node=node or UNPLACED, rank=rank, exit_code=1, error=error_of(text, None))
    return Sighting(data, at_ms, node, where)


def _hang(group: str, seq: int, op: str, wait: _Wait, job: Job) -> Sighting:
    world = len(job.nodes) * job.local_world_size if job.nodes and job.local_world_size else None
    missing = tuple(sorted(set(range(world)) - wait.ranks)) if world else ()
    laggards = missing if world and len(missing) < len(wait.ranks) else ()
    data = RankHung(
        generation=0,
        ranks=laggards,
        step=None,
        phase="collective",
        stalled_ms=wait.stalled_ms,
        collective=Collective(group=group, seq=seq, op=op.lower()),
    )
    return Sighting(data, wait.at_ms, None, wait.where)
