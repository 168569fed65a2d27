"""From sightings to the facts of a job: who has which slot, what came when, and the opening that artefacts leave out.

The opening (run, nodes, their start) is made up from what is known about the job; every note says so. What follows is
what the artefacts say, in the order of their times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lmr.engine.events import (
    CheckpointPersisted,
    Event,
    GenerationStarted,
    NodeJoined,
    RunOpened,
    WorkerExited,
)
from lmr.replay_tool.importers.sighting import UNPLACED, Gleaned, Sighting

OPENING_MS = 60_000
"""The made-up opening lies this long before the first sighting."""
DEFAULT_LOCAL_WORLD_SIZE = 8


@dataclass
class Placed:
    """A job's facts, ready to be decided on."""

    run_id: str
    events: list[Event] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    standby: list[str] = field(default_factory=list)
    local_world_size: int = DEFAULT_LOCAL_WORLD_SIZE
    sightings: int = 0
    notes: list[str] = field(default_factory=list)


def place(
    gleaned: Iterable[Gleaned],
    *,
    run_id: str,
    nodes: list[str],
    standby: list[str],
    local_world_size: int | None,
    durable_step: int | None,
) -> Placed:
    """The facts of one job.

    Args:
        gleaned: what every artefact told.
        run_id: the run's id.
        nodes: node names in slot order; when empty, the artefacts' own.
        standby: nodes that stood by; when empty, the artefacts' own.
        local_world_size: ranks of a node; None: the artefacts' own, else 8.
        durable_step: a step the framework had saved, if any.
    """
    found = list(gleaned)
    placed = Placed(run_id, notes=[note for item in found for note in item.notes])
    placed.nodes = nodes or _nodes(found)
    placed.standby = [
        name for name in standby or [n for item in found for n in item.standby] if name not in placed.nodes
    ]
    placed.local_world_size = local_world_size or _local_world_size(found, placed)
    sightings = [item for one in found for item in one.sightings]
    if not placed.nodes:
        placed.notes.append("no node is named; say --nodes")
        return placed
    timed = _in_order(sightings)
    start_ms = max(0, (timed[0][0] if timed else OPENING_MS) - OPENING_MS)
    placed.events += _opening(placed, start_ms, durable_step)
    for at_ms, sighting in timed:
        event = _event(placed, sighting, at_ms)
        if event is not None:
            placed.events.append(event)
            placed.sightings += 1
    placed.notes.insert(
        0, f"the opening (run, {len(placed.nodes)} nodes, their start) is made up: artefacts do not tell it"
    )
    return placed


def _nodes(found: list[Gleaned]) -> list[str]:
    for item in found:
        if item.nodes:
            return item.nodes
    first_rank: dict[str, int] = {}
    for item in found:
        for host, ranks in item.ranks_of.items():
            first_rank[host] = min(min(ranks), first_rank.get(host, min(ranks)))
    by_rank = sorted(first_rank, key=lambda host: first_rank[host])
    others = {s.node for item in found for s in item.sightings if s.node} - set(by_rank)
    return by_rank + sorted(others)


def _local_world_size(found: list[Gleaned], placed: Placed) -> int:
    said = [item.local_world_size for item in found if item.local_world_size]
    if said:
        return max(said)
    highest = [max(ranks) for item in found for ranks in item.ranks_of.values()]
    if highest and len(placed.nodes) == 1:
        return max(highest) + 1
    placed.notes.append(f"{DEFAULT_LOCAL_WORLD_SIZE} ranks a node are assumed; say --nproc-per-node")
    return DEFAULT_LOCAL_WORLD_SIZE


def _in_order(sightings: list[Sighting]) -> list[tuple[int, Sighting]]:
    """Sightings with their times; one without a time comes right behind the one before it in its artefact."""
    known = [item.at_ms for item in sightings if item.at_ms is not None]
    last = min(known, default=OPENING_MS)
    timed = []
    for item in sightings:
        last = item.at_ms if item.at_ms is not None else last
        timed.append((last, item))
    return sorted(timed, key=lambda pair: pair[0])


def _opening(placed: Placed, at_ms: int, durable_step: int | None) -> list[Event]:
    everyone = placed.nodes + placed.standby
    opened = RunOpened(
        run_id=placed.run_id,
        min_nodes=len(placed.nodes),
        max_nodes=len(everyone),
        local_world_size=placed.local_world_size,
        detection=True,
        checkpointing=True,
        policy={},
    )
    events = [Event.of(opened, at_ms=at_ms, source="decider")]
    for name in everyone:
        joined = NodeJoined(node=name, incarnation=name, address=name, failure_domain=None, fingerprint=None)
        events.append(Event.of(joined, at_ms=at_ms, source=name))
    starts = [GenerationStarted(generation=0, node=name) for name in placed.nodes]
    events += [Event.of(start, at_ms=at_ms + 1_000, source=start.node) for start in starts]
    if durable_step is not None:
        saved = CheckpointPersisted(generation=0, step=durable_step, checkpoint_id=f"step-{durable_step}")
        events.append(Event.of(saved, at_ms=at_ms + 2_000, source=placed.nodes[0]))
    return events


def _event(placed: Placed, sighting: Sighting, at_ms: int) -> Event | None:
    data: Any = sighting.data
    named = getattr(data, "node", None)
    if named is not None:
        node = _known(placed, named) if named != UNPLACED else _node_of_rank(placed, data)
        if node is None:
            placed.notes.append(
                f"{sighting.where}: {'its rank' if named == UNPLACED else named} is on no node of this job"
            )
            return None
        data = data.model_copy(update={"node": node})
    highest = len(placed.nodes) * placed.local_world_size
    ranks = [getattr(data, "rank", None), *(getattr(data, "ranks", None) or ())]
    if any(rank is not None and rank >= highest for rank in ranks):
        placed.notes.append(f"{sighting.where}: names a rank above {highest - 1}; say --nodes and --nproc-per-node")
        return None
    source = _known(placed, sighting.node) if sighting.node else None
    return Event.of(data, at_ms=at_ms, source=source or getattr(data, "node", None) or placed.nodes[0])


def _known(placed: Placed, host: str) -> str | None:
    names = [*placed.nodes, *placed.standby]
    for name in (host, host.split(".")[0]):
        if name in names:
            return name
    short = [name for name in names if name.split(".")[0] == host]
    return short[0] if len(short) == 1 else None


def _node_of_rank(placed: Placed, data: WorkerExited) -> str | None:
    slot = (data.rank or 0) // placed.local_world_size
    return placed.nodes[slot] if slot < len(placed.nodes) else None
