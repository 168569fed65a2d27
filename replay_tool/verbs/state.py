"""`state --at SEQ`: what the engine knew after a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lmr.engine.certification import certified
from lmr.engine.deadlines import deadlines
from lmr.engine.reduce import apply
from lmr.engine.state import Node, State
from lmr.engine.steps import StepChooser
from lmr.replay_tool.errors import NotInLog
from lmr.replay_tool.source import Log


@dataclass(frozen=True)
class NodeState:
    """One node as the engine sees it."""

    node: str
    role: str
    slot: int | None
    incarnation: str | None
    failure_domain: str | None
    blamed: int
    why: str | None


@dataclass(frozen=True)
class StepState:
    """One step that is known: is it complete, is it certified, which slots have a live source."""

    step: int
    generation: int
    complete: bool
    certified: bool
    durable: bool
    copies: int
    slots: int
    checked: str


@dataclass(frozen=True)
class StateAt:
    """The state after one record."""

    run_id: str
    seq: int
    at_ms: int
    head_hash: str
    closed: str | None
    generation: int
    generation_step: int | None
    highest_step: int | None
    resumed: bool
    incident: dict[str, Any] | None
    hold_since_ms: int | None
    recoveries: int
    generations_without_progress: int
    nodes: tuple[NodeState, ...]
    steps: tuple[StepState, ...]
    first_bad_step: int | None
    deadlines: tuple[tuple[str, int], ...]
    policy: dict[str, int | None]
    policy_digest: str
    detection: bool
    checkpointing: bool
    notes: tuple[str, ...] = field(default=())


def state(log: Log, *, at: int | None = None) -> StateAt:
    """The state of `log` after seq `at` (None: the last).

    Raises:
        NotInLog: no such seq.
    """
    return seen(fold_to(log, at), log.notes)


def fold_to(log: Log, at: int | None) -> State:
    """The engine's state after seq `at`.

    Raises:
        NotInLog: no such seq.
    """
    if at is not None and at < 1:
        raise NotInLog(f"{log.where}: --at {at}: the first seq is 1")
    found = log.beginning()
    if at is not None and at < found.seq:
        raise NotInLog(f"{log.where}: --at {at}: records 1 to {found.seq} were archived; ask the archive's bundle")
    if found.seq and found.seq == at:
        return found
    for record in log.records(found.seq):
        apply(found, record)
        if record.seq == at:
            return found
    if at is not None:
        raise NotInLog(f"{log.where}: --at {at}: the log ends at seq {found.seq}")
    return found


def seen(found: State, notes: tuple[str, ...] = ()) -> StateAt:
    """A state as data."""
    generation = found.generation
    return StateAt(
        run_id=found.run_id,
        seq=found.seq,
        at_ms=found.now_ms,
        head_hash=found.head_hash,
        closed=found.closed,
        generation=found.last_generation,
        generation_step=generation.began_step if generation else None,
        highest_step=generation.highest_step if generation else None,
        resumed=generation is not None and generation.resumed_ms is not None,
        incident=_incident(found),
        hold_since_ms=found.hold.since_ms if found.hold else None,
        recoveries=found.recoveries,
        generations_without_progress=found.stagnant,
        nodes=tuple(_node(node, found) for node in sorted(found.nodes.values(), key=lambda item: item.joined_seq)),
        steps=tuple(_steps(found)),
        first_bad_step=min(found.corrupt, default=None),
        deadlines=tuple((item.id, item.due_ms) for item in sorted(deadlines(found))),
        policy=found.policy.table(),
        policy_digest=found.policy.digest(),
        detection=found.detection,
        checkpointing=found.checkpointing,
        notes=notes,
    )


def _incident(found: State) -> dict[str, Any] | None:
    incident = found.incident
    if incident is None:
        return None
    return {
        "incident": incident.number,
        "opened_ms": incident.opened_ms,
        "facts": [{"seq": fact.seq, "kind": fact.kind, "nodes": list(fact.nodes)} for fact in incident.facts],
        "settled": incident.settled_seq is not None,
        "awaiting": sorted(incident.awaiting or ()),
    }


def _node(node: Node, found: State) -> NodeState:
    slot = found.generation.slot_of.get(node.name) if found.generation else None
    if not node.live:
        role, why = "gone", f"seq {node.gone_seq}" if node.gone_seq else None
    elif node.quarantine is not None:
        role, why = "quarantined", f"by seq {node.quarantine.seq}, until {node.quarantine.until.replace('_', ' ')}"
    elif slot is not None:
        role, why = "active", None
    elif node.cordoned_seq is not None:
        role, why = "cordoned", f"by seq {node.cordoned_seq}"
    elif node.drifted_seq is not None:
        role, why = "drifted", f"by seq {node.drifted_seq}"
    else:
        role, why = "standby", None
    return NodeState(node.name, role, slot, node.incarnation, node.failure_domain, len(node.blamed_ms), why)


def _steps(found: State) -> list[StepState]:
    trusted = {id(item) for item in certified(found.copies, found.policy.certify_checks)}
    chooser = StepChooser(found)
    states = []
    for snapshot in found.copies.newest_first():
        if snapshot.corrupt_seq is not None:
            checked = "corrupt"
        elif snapshot.unclean_seq is not None:
            checked = "inconclusive"
        else:
            checked = "clean" if snapshot.clean_seq is not None else "unchecked"
        states.append(
            StepState(
                snapshot.step,
                snapshot.generation,
                chooser.complete(snapshot),
                id(snapshot) in trusted,
                snapshot.durable,
                sum(len(copies) for copies in snapshot.copies.values()),
                len(snapshot.copies),
                checked,
            )
        )
    return states
