"""`timeline`: incidents, generations, nodes and facts of a run in order, with the length of each recovery phase."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmr.replay_tool.errors import NotInLog, Usage
from lmr.replay_tool.history import Fact, Generation, History, Incident, Node, Span, fold
from lmr.replay_tool.moment import parse_since
from lmr.replay_tool.sentences import plan_headline
from lmr.replay_tool.source import Log


@dataclass(frozen=True)
class PlanLine:
    """A plan in one line."""

    plan_id: str
    seq: int
    at_ms: int
    action: str
    headline: str


@dataclass(frozen=True)
class IncidentLine:
    """One incident: what was blamed, what was done, how long each phase took, what it cost."""

    incident: int
    generation: int
    cause: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    confidence: str
    action: str
    reason: str
    step: int | None
    trust: str | None
    lost_steps: int
    standbys_used: int
    times_ms: dict[str, int | None]
    lengths_ms: dict[str, int]
    plans: tuple[PlanLine, ...]
    evidence: tuple[Fact, ...]


@dataclass(frozen=True)
class GenerationLine:
    """One life of the worker group."""

    generation: int
    from_ms: int
    to_ms: int | None
    first_step: int | None
    last_step: int | None
    slots: dict[int, str]


@dataclass(frozen=True)
class NodeLine:
    """One node: its lives, its roles over time, the incidents it was blamed for."""

    node: str
    failure_domain: str | None
    incarnations: tuple[str, ...]
    incidents: tuple[int, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Timeline:
    """What happened, filtered as asked."""

    run_id: str
    where: str
    start_ms: int
    end_ms: int
    records: int
    outcome: str | None
    outcome_reason: str | None
    lost_steps: int
    incidents: tuple[IncidentLine, ...]
    generations: tuple[GenerationLine, ...]
    nodes: tuple[NodeLine, ...]
    facts: tuple[Fact, ...]
    counts: dict[str, int]
    unknown_types: dict[str, int]
    notes: tuple[str, ...] = field(default=())


def timeline(log: Log, *, incident: int | None = None, node: str | None = None, since: str | None = None) -> Timeline:
    """The story of `log`.

    Args:
        log: what to read.
        incident: only this incident.
        node: only facts, incidents and plans that concern this node.
        since: only what was recorded at or after this moment: `15m` before the end, `+30` s after the start, or an
            ISO time.

    Raises:
        NotInLog: no such incident or node.
        Usage: `since` is no moment.
    """
    history = fold(log.records())
    from_ms = _since(history, since)
    if node is not None and node not in history.nodes:
        raise NotInLog(f"{log.where}: no node {node!r}; it holds {', '.join(sorted(history.nodes)) or 'no node'}")
    incidents = [
        item
        for item in history.incidents
        if (incident is None or item.number == incident)
        and (node is None or _concerns(item, node))
        and item.plans[-1].at_ms >= from_ms
    ]
    if incident is not None and not incidents:
        numbers = ", ".join(str(item.number) for item in history.incidents) or "none"
        raise NotInLog(f"{log.where}: no incident {incident} here; incidents: {numbers}")
    return Timeline(
        run_id=history.run_id,
        where=log.where,
        start_ms=history.start_ms,
        end_ms=history.end_ms,
        records=history.last_seq,
        outcome=history.outcome,
        outcome_reason=history.outcome_reason,
        lost_steps=sum(item.lost_steps for item in incidents),
        incidents=tuple(incident_line(item) for item in incidents),
        generations=tuple(
            generation_line(item)
            for item in history.generations
            if (item.ended_ms is None or item.ended_ms >= from_ms) and (node is None or node in item.slots.values())
        ),
        nodes=tuple(node_line(item) for item in history.nodes.values() if node in (None, item.name)),
        facts=tuple(_facts(history, incidents if incident is not None else None, node, from_ms)),
        counts=history.counts,
        unknown_types=history.unknown_types,
        notes=log.notes,
    )


def _since(history: History, since: str | None) -> int:
    if since is None:
        return history.start_ms
    try:
        return parse_since(since, history.start_ms, history.end_ms)
    except ValueError as error:
        raise Usage(
            f"--since {since}: say 90s, 15m or 2h before the end, +30 (s after the start) or an ISO time"
        ) from error


def _concerns(incident: Incident, node: str) -> bool:
    return (
        node in incident.nodes
        or any(node in fact.nodes for fact in incident.evidence)
        or any(node in decided.plan.quarantined for decided in incident.plans)
    )


def _facts(history: History, incidents: list[Incident] | None, node: str | None, from_ms: int) -> list[Fact]:
    spans = None
    if incidents is not None:
        spans = [
            (min([fact.at_ms for fact in item.evidence] or [item.plans[0].at_ms]), _end_of(item)) for item in incidents
        ]
    return [
        fact
        for fact in history.facts
        if fact.at_ms >= from_ms
        and (node is None or node in fact.nodes or node == fact.source)
        and (spans is None or any(first <= fact.at_ms <= last for first, last in spans))
    ]


def _end_of(incident: Incident) -> int:
    known = [value for value in vars(incident.phases).values() if value is not None]
    return max([*known, *(fact.at_ms for fact in incident.evidence)], default=0)


def incident_line(item: Incident) -> IncidentLine:
    """An incident as data."""
    return IncidentLine(
        incident=item.number,
        generation=item.generation,
        cause=item.cause,
        nodes=item.nodes,
        ranks=item.ranks,
        confidence=item.confidence,
        action=item.action,
        reason=item.reason,
        step=item.step,
        trust=item.trust,
        lost_steps=item.lost_steps,
        standbys_used=item.standbys_used,
        times_ms=dict(vars(item.phases)),
        lengths_ms=item.phases.lengths_ms(),
        plans=tuple(
            PlanLine(entry.plan.plan_id, entry.seq, entry.at_ms, entry.plan.action, plan_headline(entry.plan))
            for entry in item.plans
        ),
        evidence=tuple(item.evidence),
    )


def generation_line(item: Generation) -> GenerationLine:
    """A generation as data."""
    return GenerationLine(item.number, item.decided_ms, item.ended_ms, item.first_step, item.last_step, item.slots)


def node_line(item: Node) -> NodeLine:
    """A node as data."""
    return NodeLine(item.name, item.failure_domain, tuple(item.incarnations), tuple(item.incidents), tuple(item.spans))
