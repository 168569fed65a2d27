"""The fold: records go in, one at a time and in order, and the state says what they add up to.

Everything that happens goes through `apply`. The match names every event there is, so a new event that nobody folds is
a type error.
"""

from lmr.engine import captures, commitment, incident, membership
from lmr.engine.deadlines import deadlines
from lmr.engine.errors import FoldMisused
from lmr.engine.events import (
    CheckpointCaptured,
    CheckpointDropped,
    CheckpointFlushed,
    CheckpointPersisted,
    CheckpointReplicated,
    CheckpointStalled,
    CollectiveDesynced,
    ConfigDrifted,
    Data,
    DeadlinePassed,
    DeviceUnhealthy,
    GenerationStarted,
    InputStalled,
    LossDiverged,
    NodeConfirmed,
    NodeCordoned,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeUncordoned,
    OperatorRequested,
    PlanCommitted,
    PolicyChanged,
    RankHung,
    RankSlowed,
    ReplayChecked,
    RestoreFailed,
    RunClosed,
    RunOpened,
    RunReopened,
    StateDiverged,
    StateRestored,
    TrainingResumed,
    UnknownData,
    WorkerExited,
    WorkersFinished,
)
from lmr.engine.policy import RecoveryPolicy
from lmr.engine.record import Record
from lmr.engine.state import Generation, State


def apply(state: State, record: Record) -> None:
    """Folds one record into the state, in place. What a record costs does not depend on the log's length.

    Raises:
        FoldMisused: the record is not the one after the last.
    """
    pass_over(state, record)
    if state.closed is None:
        seq, data = state.seq, record.event.data
        if state.generation is not None:
            _note_step(state, state.generation, data)
        _fold(state, seq, data)


def pass_over(state: State, record: Record) -> None:
    """Takes the record's place and time only: for one whose word the reader of the state has no use for.

    Raises:
        FoldMisused: the record is not the one after the last.
    """
    seq = record.seq
    if seq != state.seq + 1:
        raise FoldMisused(f"record {seq} does not follow {state.seq}")
    state.seq = seq
    state.head_hash = record.hash
    if record.recorded_at_ms > state.now_ms:
        state.now_ms = record.recorded_at_ms


def _fold(state: State, seq: int, data: Data) -> bool:  # noqa: C901 - one line an event, all in one place
    """Folds one event. Returns True so that an event without a case is a missing return to mypy."""
    match data:
        # A class pattern costs each event behind it: what long logs consist of comes first.
        case CheckpointCaptured():
            captures.copied(state, seq, data, data.node, "memory")
            return True
        case CheckpointReplicated():
            captures.copied(state, seq, data, data.holder, "replica")
            return True
        case ReplayChecked() | StateDiverged():
            _verdict(state, seq, data)
            return True
        case RunOpened():
            _opened(state, data)
            return True
        case RunReopened():
            membership.reopened(state, seq)
            return True
        case PolicyChanged():
            state.policy = RecoveryPolicy.from_table(data.policy, strict=False)
            return True
        case NodeJoined():
            membership.joined(state, seq, data)
            return True
        case NodeLeft() | NodeLost():
            membership.gone(state, seq, data)
            return True
        case NodeConfirmed():
            incident.confirmed(state, data.node, data.incarnation)
            return True
        case NodeCordoned():
            membership.cordoned(state, seq, data.node)
            return True
        case NodeUncordoned():
            membership.uncordoned(state, seq, data.node)
            return True
        case DeviceUnhealthy():
            membership.device_unhealthy(state, seq, data)
            return True
        case ConfigDrifted():
            membership.config_drifted(state, seq, data)
            return True
        case GenerationStarted():
            _started(state, data)
            return True
        case StateRestored():
            if _is_current(state, data.generation, data.node) and state.generation is not None:
                state.generation.restored.add(data.node)
            return True
        case RestoreFailed():
            captures.restore_failed(state, seq, data)
            return True
        case TrainingResumed():
            _resumed(state, data)
            return True
        case WorkersFinished():
            _finished(state, data)
            return True
        case WorkerExited():
            incident.worker_exited(state, seq, data)
            return True
        case RankHung():
            incident.rank_hung(state, seq, data)
            return True
        case CollectiveDesynced():
            incident.collective_desynced(state, seq, data)
            return True
        case RankSlowed():
            incident.rank_slowed(state, seq, data)
            return True
        case InputStalled() | CheckpointStalled():
            incident.stalled(state, seq, data)
            return True
        case LossDiverged():
            incident.loss_diverged(state, seq, data)
            return True
        case CheckpointFlushed():
            captures.copied(state, seq, data, data.holder, "disk")
            return True
        case CheckpointPersisted():
            captures.persisted(state, seq, data)
            return True
        case CheckpointDropped():
            captures.dropped(state, data)
            return True
        case OperatorRequested():
            incident.operator_requested(state, seq, data)
            return True
        case DeadlinePassed():
            _deadline_passed(state, seq, data.deadline)
            return True
        case PlanCommitted():
            commitment.committed(state, seq, data.plan)
            return True
        case RunClosed():
            state.closed = data.outcome
            return True
        case UnknownData():
            return True


def _opened(state: State, data: RunOpened) -> None:
    if state.opened_ms is not None:
        return
    state.opened_ms = state.now_ms
    state.run_id = data.run_id
    state.min_nodes = data.min_nodes
    state.max_nodes = data.max_nodes
    state.local_world_size = data.local_world_size
    state.detection = data.detection
    state.checkpointing = data.checkpointing
    state.policy = RecoveryPolicy.from_table(data.policy, strict=False)


def _started(state: State, data: GenerationStarted) -> None:
    generation = state.generation
    if generation is None or not _is_current(state, data.generation, data.node):
        return
    generation.started.add(data.node)
    if generation.all_started_ms is None and len(generation.started) == len(generation.slots):
        generation.all_started_ms = state.now_ms


def _resumed(state: State, data: TrainingResumed) -> None:
    generation = state.generation
    if generation is None or data.generation != generation.number or generation.resumed_ms is not None:
        return
    generation.resumed_ms = state.now_ms
    commitment.resumed(state)


def _finished(state: State, data: WorkersFinished) -> None:
    generation = state.generation
    if generation is None or not _is_current(state, data.generation, data.node):
        return
    generation.finished.add(data.node)
    if state.incident is not None and state.incident.awaiting is not None:
        state.incident.awaiting.discard(data.node)


def _verdict(state: State, seq: int, data: ReplayChecked | StateDiverged) -> None:
    if data.generation > state.last_generation:
        return
    in_lineage = state.lineage.contains(data.generation, data.step)
    captures.checked(state, seq, data, in_lineage=in_lineage)
    if isinstance(data, StateDiverged) or data.verdict == "corrupt":
        incident.corrupt(state, seq, data, in_lineage=in_lineage)


def _deadline_passed(state: State, seq: int, deadline_id: str) -> None:
    if all(deadline.id != deadline_id for deadline in deadlines(state)):
        return
    kind = deadline_id.partition(":")[0]
    if kind == "settle":
        incident.settled(state, seq)
    elif kind == "confirm" and state.incident is not None:
        state.incident.waited_seq = seq
        state.incident.deadline_seqs.append(seq)
    elif kind == "hold":
        state.hold_passed_seq = seq
    elif kind == "place":
        state.placing_passed = True
    elif state.generation is not None:
        state.generation.passed.add(deadline_id)
        if kind == "start":
            membership.silent(state, seq)
        else:
            captures.restore_overdue(state, seq)


def _is_current(state: State, generation: int, node: str) -> bool:
    return state.generation is not None and state.generation.number == generation and state.is_active(node)


def _note_step(state: State, current: Generation, data: Data) -> None:
    """The highest step facts of the current generation name: what a rollback loses is counted from it."""
    if getattr(data, "generation", None) != current.number:
        return
    step: int | None = getattr(data, "step", None)
    if step is None:
        return
    if current.highest_step is None or step > current.highest_step:
        current.highest_step = step
    underway = current.resumed_ms is not None or current.number == 0
    if underway and (current.last_seen is None or step > current.last_seen[0]):
        current.last_seen = (step, state.now_ms)
        current.first_seen = current.first_seen or current.last_seen
