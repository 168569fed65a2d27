"""A log folded into what people talk about: incidents with phases, generations, lives of nodes, plans.

The fold reads only what the log says (recorded plans included); it never decides. Times are `recorded_at_ms`, the one
clock that every record shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from lmr.engine.events import (
    CheckpointCaptured,
    CheckpointDropped,
    CheckpointFlushed,
    CheckpointReplicated,
    GenerationStarted,
    NodeCordoned,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeUncordoned,
    PlanCommitted,
    ReplayChecked,
    RunClosed,
    RunOpened,
    RunReopened,
    StateRestored,
    TrainingResumed,
    UnknownData,
    WorkerExited,
)
from lmr.engine.plan import Plan
from lmr.engine.record import Record
from lmr.replay_tool.sentences import sentence

QUIET = (CheckpointCaptured, CheckpointReplicated, CheckpointFlushed, CheckpointDropped)
"""Facts of the healthy loop: counted, not listed one by one."""


@dataclass(frozen=True)
class Fact:
    """A record worth showing: when, what, about whom."""

    seq: int
    at_ms: int
    type: str
    source: str
    text: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Decided:
    """A committed plan and where it stands."""

    seq: int
    at_ms: int
    plan: Plan


@dataclass
class Phases:
    """When each part of a recovery was reached, UTC ms; None when the log does not say.

    `detected` is the first fact the plan cites, `stopped` the last exit reported after the plan, `workers_up` the last
    start, `restored` the last node that holds the step, `resumed` the first new optimizer step.
    """

    detected_ms: int | None = None
    decided_ms: int | None = None
    stopped_ms: int | None = None
    workers_up_ms: int | None = None
    restored_ms: int | None = None
    resumed_ms: int | None = None

    def lengths_ms(self) -> dict[str, int]:
        """Milliseconds from each known phase to the next known one, and `total`."""
        known = [(name.removesuffix("_ms"), value) for name, value in vars(self).items() if value is not None]
        spans = {name: value - before for (_, before), (name, value) in pairwise(known)}
        if self.detected_ms is not None and self.resumed_ms is not None:
            spans["total"] = self.resumed_ms - self.detected_ms
        return spans


@dataclass
class Incident:
    """One failure episode: its plans (several when a restore failed or a hold ended), cause, phases and cost."""

    number: int
    generation: int
    cause: str
    reason: str
    action: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    confidence: str
    plans: list[Decided]
    evidence: list[Fact]
    phases: Phases
    step: int | None
    trust: str | None
    lost_steps: int
    standbys_used: int


@dataclass
class Generation:
    """One life of the worker group, from the plan that ordered it to the next plan that moves on."""

    number: int
    plan_seq: int
    decided_ms: int
    slots: dict[int, str]
    first_step: int | None
    last_step: int | None = None
    phases: Phases = field(default_factory=Phases)
    ended_ms: int | None = None
    _started: set[str] = field(default_factory=set)
    _restored: set[str] = field(default_factory=set)


@dataclass
class Span:
    """A stretch of a node's life in one role (active, standby, quarantined, cordoned); no `to_ms`: to the end."""

    role: str
    from_ms: int
    to_ms: int | None = None
    generation: int | None = None
    slot: int | None = None


@dataclass
class Node:
    """One node over time."""

    name: str
    failure_domain: str | None
    incarnations: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    incidents: list[int] = field(default_factory=list)
    role: str | None = None
    _quarantined: bool = False


@dataclass
class History:
    """Everything the timeline, the report and the exports need to know about a run."""

    run_id: str = ""
    min_nodes: int = 0
    local_world_size: int = 0
    start_ms: int = 0
    end_ms: int = 0
    last_seq: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    generations: list[Generation] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    plans: list[Decided] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    progress: list[tuple[int, int, int]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    unknown_types: dict[str, int] = field(default_factory=dict)
    outcome: str | None = None
    outcome_reason: str | None = None
    _evidence: dict[int, Fact] = field(default_factory=dict)

    @property
    def generation(self) -> Generation | None:
        """The newest generation, None before the first plan."""
        return self.generations[-1] if self.generations else None


def fold(records: Iterable[Record], *, keep_facts: bool = True) -> History:
    """The history of `records`.

    Args:
        records: one run's records from the first.
        keep_facts: keep every fact that is not of the healthy loop; else only what the plans cite.
    """
    history = History()
    for record in records:
        _fold_one(history, record, keep_facts)
    return history


def _fold_one(history: History, record: Record, keep_facts: bool) -> None:
    data, at_ms = record.event.data, record.recorded_at_ms
    if not history.run_id:
        history.run_id, history.start_ms = record.run_id, at_ms
    history.end_ms, history.last_seq = max(history.end_ms, at_ms), record.seq
    name = record.event.type
    history.counts[name] = history.counts.get(name, 0) + 1
    if isinstance(data, UnknownData):
        history.unknown_types[name] = history.unknown_types.get(name, 0) + 1
    _note_step(history, data, at_ms)
    if isinstance(data, QUIET):
        return
    if not (isinstance(data, ReplayChecked) and data.verdict == "clean"):
        fact = Fact(record.seq, at_ms, name, record.event.source, sentence(record.event), subjects(data, history))
        history._evidence[record.seq] = fact
        if keep_facts:
            history.facts.append(fact)
    _fold_data(history, record)


def _fold_data(history: History, record: Record) -> None:
    at_ms = record.recorded_at_ms
    match record.event.data:
        case RunOpened() as data:
            history.min_nodes, history.local_world_size = data.min_nodes, data.local_world_size
        case RunReopened():
            for node in history.nodes.values():
                _switch(node, None, at_ms)
        case NodeJoined() as data:
            _joined(history, data, at_ms)
        case NodeLeft() | NodeLost() as data:
            _gone(history, data, at_ms)
        case NodeCordoned() as data:
            _turned(history, data.node, ("standby",), "cordoned", at_ms)
        case NodeUncordoned() as data:
            _turned(history, data.node, ("cordoned", "quarantined"), "standby", at_ms)
        case PlanCommitted() as data:
            _committed(history, data, record)
        case GenerationStarted() as data:
            _started(history, data, at_ms)
        case StateRestored() as data:
            _restored(history, data, at_ms)
        case TrainingResumed() as data:
            _resumed(history, data, at_ms)
        case WorkerExited() as data:
            _exited(history, data, at_ms)
        case RunClosed() as data:
            _closed(history, data, at_ms)
        case _:
            pass  # tells the timeline something, but moves nobody


def subjects(data: object, history: History) -> tuple[str, ...]:
    """Nodes a fact is about: those it names, and those whose ranks it names in that generation."""
    if isinstance(data, PlanCommitted):
        return data.plan.cause.nodes
    named = [name for key in ("node", "holder") if isinstance(name := getattr(data, key, None), str)]
    slots = next((g.slots for g in reversed(history.generations) if g.number == getattr(data, "generation", None)), {})
    for rank in _ranks(data) if history.local_world_size and not named else ():
        named += [slots[slot]] if (slot := rank // history.local_world_size) in slots else []
    return tuple(dict.fromkeys(named))


def _ranks(data: object) -> tuple[int, ...]:
    rank = getattr(data, "rank", None)
    return (rank,) if rank is not None else tuple(getattr(data, "ranks", None) or ())


def _note_step(history: History, data: object, at_ms: int) -> None:
    generation, step, current = getattr(data, "generation", None), getattr(data, "step", None), history.generation
    if current is None or step is None or generation != current.number or isinstance(data, StateRestored):
        return
    if current.last_step is None or step > current.last_step:
        current.last_step = step
        history.progress.append((at_ms, current.number, step))


def _switch(node: Node, role: str | None, at_ms: int, generation: int | None = None, slot: int | None = None) -> None:
    last = node.spans[-1] if node.spans else None
    if last is not None and last.to_ms is None:
        if role == last.role and (generation, slot) == (last.generation, last.slot):
            return
        last.to_ms = at_ms
    node.role = role
    if role is not None:
        node.spans.append(Span(role, at_ms, None, generation, slot))


def _joined(history: History, data: NodeJoined, at_ms: int) -> None:
    node = history.nodes.setdefault(data.node, Node(data.node, data.failure_domain))
    if data.incarnation not in node.incarnations:
        node.incarnations.append(data.incarnation)
    if node.role is None:
        _switch(node, "standby", at_ms)


def _gone(history: History, data: NodeLeft | NodeLost, at_ms: int) -> None:
    node = history.nodes.get(data.node)
    if node is not None and (not node.incarnations or node.incarnations[-1] == data.incarnation):
        _switch(node, None, at_ms)


def _turned(history: History, name: str, was: tuple[str, ...], role: str, at_ms: int) -> None:
    node = history.nodes.get(name)
    if node is not None and node.role in was:
        _switch(node, role, at_ms)


def _committed(history: History, data: PlanCommitted, record: Record) -> None:
    plan, at_ms = data.plan, record.recorded_at_ms
    decided = Decided(record.seq, at_ms, plan)
    before = history.generation
    history.plans.append(decided)
    _note_incident(history, decided, before)
    moves = plan.action in ("start", "restart", "replace")
    if before is not None and before.ended_ms is None:
        before.ended_ms = at_ms
    if moves:
        slots = {item.slot: item.node for item in plan.assignments}
        first = plan.checkpoint.step if plan.checkpoint else None
        history.generations.append(Generation(plan.to_generation, record.seq, at_ms, slots, first))
        history.generations[-1].phases.decided_ms = at_ms
        if first is not None:
            history.progress.append((at_ms, plan.to_generation, first))
    _note_roles(history, plan, at_ms, moves)


def _note_roles(history: History, plan: Plan, at_ms: int, moves: bool) -> None:
    slots = {item.node: item.slot for item in plan.assignments} if moves else {}
    for name, node in history.nodes.items():
        if name in slots:
            _switch(node, "active", at_ms, plan.to_generation, slots[name])
        elif name in plan.quarantined and node.role is not None:
            _switch(node, "quarantined", at_ms)
        elif name in plan.standby:
            _switch(node, "standby", at_ms)


def _note_incident(history: History, decided: Decided, before: Generation | None) -> None:
    plan = decided.plan
    if plan.action == "start":
        return
    last = history.incidents[-1] if history.incidents else None
    cited = [history._evidence[seq] for seq in plan.evidence if seq in history._evidence]
    old = set(before.slots.values()) if before else set()
    used = len({item.node for item in plan.assignments} - old) if plan.action in ("restart", "replace") else 0
    if last is None or last.number != plan.incident:
        phases = Phases(detected_ms=min((fact.at_ms for fact in cited), default=decided.at_ms))
        last = Incident(
            plan.incident, plan.from_generation, plan.cause.kind, plan.reason, plan.action, plan.cause.nodes,
            plan.cause.ranks, plan.cause.confidence, [], [], phases, None, None, 0, 0,
        )  # fmt: skip
        history.incidents.append(last)
    last.phases = Phases(detected_ms=last.phases.detected_ms)
    last.plans.append(decided)
    known = {fact.seq for fact in last.evidence}
    last.evidence += [fact for fact in cited if fact.seq not in known]
    last.phases.decided_ms = decided.at_ms
    last.action, last.reason = plan.action, plan.reason
    last.standbys_used += used
    if plan.checkpoint is not None:
        last.step, last.trust = plan.checkpoint.step, plan.checkpoint.trust
        last.lost_steps = max(last.lost_steps, plan.checkpoint.lost_steps)
    for name in plan.cause.nodes:
        node = history.nodes.get(name)
        if node is not None and plan.incident not in node.incidents:
            node.incidents.append(plan.incident)


def _reached(history: History, number: int, phase: str, at_ms: int) -> None:
    current = history.generation
    if current is None or current.number != number:
        return
    setattr(current.phases, phase, at_ms)
    last = history.incidents[-1] if history.incidents else None
    if last is not None and last.plans[-1].plan.to_generation == number and last.action != "hold":
        setattr(last.phases, phase, at_ms)


def _exited(history: History, data: WorkerExited, at_ms: int) -> None:
    last = history.incidents[-1] if history.incidents else None
    if last is not None and data.generation == last.plans[-1].plan.from_generation and not last.phases.workers_up_ms:
        last.phases.stopped_ms = at_ms


def _started(history: History, data: GenerationStarted, at_ms: int) -> None:
    current = history.generation
    if current is None or current.number != data.generation:
        return
    current._started.add(data.node)
    if current._started >= set(current.slots.values()) and current.phases.workers_up_ms is None:
        _reached(history, data.generation, "workers_up_ms", at_ms)


def _restored(history: History, data: StateRestored, at_ms: int) -> None:
    current = history.generation
    if current is None or current.number != data.generation:
        return
    current._restored.add(data.node)
    if current._restored >= set(current.slots.values()) and current.phases.restored_ms is None:
        _reached(history, data.generation, "restored_ms", at_ms)


def _resumed(history: History, data: TrainingResumed, at_ms: int) -> None:
    current = history.generation
    if current is not None and current.number == data.generation and current.phases.resumed_ms is None:
        _reached(history, data.generation, "resumed_ms", at_ms)


def _closed(history: History, data: RunClosed, at_ms: int) -> None:
    history.outcome, history.outcome_reason = data.outcome, data.reason
    current = history.generation
    if current is not None and current.ended_ms is None:
        current.ended_ms = at_ms
