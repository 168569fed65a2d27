"""Where a run stands, from its event log alone: what the engine's own state says, put for people and machines."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmr.engine import Record, State, apply
from lmr.engine.certification import certified
from lmr.engine.events import PlanCommitted, RunClosed, TrainingResumed
from lmr.engine.snapshots import Snapshot
from lmr.engine.state import Node
from lmr.engine.steps import StepChooser, copy_alive
from lmr.integrations.operate.phases import Recovery, RecoveryClock, opened_ms


@dataclass(frozen=True)
class NodeStanding:
    """One node: what it is to the run, and how far its slot's state is safe."""

    node: str
    role: str
    """`active`, `standby`, `quarantined`, `gone` or `not seen`; with `, quarantined`, `, drifted` or `, cordoned`."""
    slot: int | None
    captured_step: int | None
    """Newest step of its slot that is published in its own memory."""
    replicated_step: int | None
    """Newest step of its slot that another node holds, in memory or on disk."""


@dataclass(frozen=True)
class Standing:
    """What an operator asks first. Steps are None where the log names none."""

    run: str
    state: str
    """`waiting for nodes`, `starting`, `training`, `recovering`, `holding for a standby`, `succeeded`, `halted`."""
    reason: str | None
    """Of the newest decision; of the end when the run is closed."""
    generation: int | None
    step: int | None
    """Highest step any fact of this generation names."""
    restored_step: int | None
    """Step this generation began with."""
    complete_step: int | None
    """Newest step with a live source for every slot."""
    certified_step: int | None
    """Newest step that is complete and passed its checks."""
    replicated_step: int | None
    """Newest step of which every slot is held by a second node too."""
    replica_lag_steps: int | None
    """How far replicas are behind the newest complete step."""
    recoveries: int
    incident_open: bool
    last_decision: str | None
    last_decision_at_ms: int | None
    seq: int
    recorded_at_ms: int
    nodes: list[NodeStanding] = field(default_factory=list)

    @property
    def closed(self) -> bool:
        """Whether the run is over."""
        return self.state in ("succeeded", "halted")


class Follower:
    """Folds a run's records, as they come, into where the run stands.

    Memory does not grow with the log.
    """

    def __init__(self) -> None:
        self.state = State()
        self._recorded_at_ms = 0
        self._closed_reason: str | None = None
        self._decided: tuple[str, str, int] | None = None
        self._resumed = False
        self._clock = RecoveryClock()

    def fold(self, record: Record) -> list[Recovery]:
        """Take the next record in; returns the recoveries that are over with it."""
        opened = opened_ms(self.state)
        apply(self.state, record)
        over = self._clock.take(record, opened)
        self._recorded_at_ms = record.recorded_at_ms
        match record.event.data:
            case PlanCommitted(plan=plan):
                said = f"{plan.action} ({plan.reason}), plan {plan.plan_id[:12]}"
                self._decided = (said, plan.reason, record.recorded_at_ms)
                self._resumed = False
            case TrainingResumed(generation=generation):
                self._resumed = generation == self.state.generation_number
            case RunClosed(reason=reason):
                self._closed_reason = reason
                self._decided = (f"{record.event.data.outcome} ({reason})", reason, record.recorded_at_ms)
            case _:
                pass
        return over

    def standing(self) -> Standing:
        """Where the run stands after the records so far."""
        state, generation = self.state, self.state.generation
        snapshots = list(state.copies.newest_first())
        chooser = StepChooser(state)
        complete = max((s.step for s in snapshots if chooser.complete(s)), default=None)
        replicated = max((s.step for s in snapshots if self._replicated_everywhere(s)), default=None)
        trusted = certified(state.copies, state.policy.certify_checks)
        said, reason, decided_ms = self._decided or (None, None, None)
        return Standing(
            run=state.run_id,
            state=self._word(),
            reason=self._closed_reason if state.closed else reason,
            generation=None if state.generation_number < 0 else state.generation_number,
            step=None if generation is None else generation.highest_step,
            restored_step=None if generation is None else generation.began_step,
            complete_step=complete,
            certified_step=max((s.step for s in trusted), default=None),
            replicated_step=replicated,
            replica_lag_steps=None if complete is None or replicated is None else max(0, complete - replicated),
            recoveries=state.recoveries,
            incident_open=state.incident is not None and not state.closed,
            last_decision=said,
            last_decision_at_ms=decided_ms,
            seq=state.seq,
            recorded_at_ms=self._recorded_at_ms,
            nodes=[self._node(node, snapshots) for node in sorted(state.nodes.values(), key=lambda n: n.joined_seq)],
        )

    def _word(self) -> str:
        state = self.state
        if state.closed:
            return state.closed
        if state.hold is not None:
            return "holding for a standby"
        if state.generation is None:
            return "waiting for nodes"
        if state.incident is not None:
            return "recovering"
        if state.generation.number == 0 and not self._resumed:
            return "training" if state.generation.highest_step else "starting"
        return "training" if self._resumed else "recovering"

    def _node(self, node: Node, snapshots: list[Snapshot]) -> NodeStanding:
        slot = self._slot(node)
        captured = replicated = None
        if slot is not None:
            captured = max((s.step for s in snapshots if node.name in self._holders(s, slot)), default=None)
            replicated = max((s.step for s in snapshots if self._holders(s, slot) - {node.name}), default=None)
        return NodeStanding(node.name, self._role(node, slot), slot, captured, replicated)

    def _slot(self, node: Node) -> int | None:
        generation = self.state.generation
        if generation is None:
            return None
        slot = generation.slot_of.get(node.name)
        return slot if slot is not None and generation.slots[slot].incarnation == node.incarnation else None

    @staticmethod
    def _role(node: Node, slot: int | None) -> str:
        if not node.live:
            said = "gone" if node.incarnations else "not seen"
            if node.quarantine is not None:
                said += ", quarantined"
        elif node.quarantine is not None:
            said = "quarantined"
        else:
            said = "standby" if slot is None else "active"
            if node.drifted_seq is not None:
                said += ", drifted"
        return said + ", cordoned" if node.cordoned_seq is not None else said

    def _replicated_everywhere(self, snapshot: Snapshot) -> bool:
        generation = self.state.generation
        if generation is None:
            return False
        return all(self._holders(snapshot, slot) - {place.node} for slot, place in enumerate(generation.slots))

    def _holders(self, snapshot: Snapshot, slot: int) -> set[str]:
        """Nodes that are alive and hold the slot's shard of the step."""
        copies = snapshot.copies.get(slot, {}).values()
        return {copy.holder for copy in copies if copy_alive(self.state, copy)}
