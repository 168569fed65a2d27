"""Every event of the log: facts somebody observed, and the two decisions the engine derives from them.

One frozen model per type, named after it: `node_joined` is `NodeJoined`. Stored type names are these strings, never
class paths. Reading is lenient (unknown fields and types are kept as they are), writing is strict (both are errors).
Integers and strings only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lmr.engine.errors import EventInvalid, PolicyInvalid
from lmr.engine.plan import Count, Int, Ints, Names, Plan
from lmr.engine.policy import RecoveryPolicy

__all__ = [
    "DECISIONS",
    "EVENT_TYPES",
    "Artifact",
    "CheckpointCaptured",
    "CheckpointDropped",
    "CheckpointFlushed",
    "CheckpointPersisted",
    "CheckpointReplicated",
    "CheckpointStalled",
    "Collective",
    "CollectiveDesynced",
    "ConfigDrifted",
    "DeadlinePassed",
    "DeviceUnhealthy",
    "Event",
    "ExitError",
    "GenerationStarted",
    "InputStalled",
    "LossDiverged",
    "NodeConfirmed",
    "NodeCordoned",
    "NodeJoined",
    "NodeLeft",
    "NodeLost",
    "NodeUncordoned",
    "OperatorRequested",
    "PlanCommitted",
    "PolicyChanged",
    "RankHung",
    "RankSlowed",
    "ReplayChecked",
    "RestoreFailed",
    "RunClosed",
    "RunOpened",
    "RunReopened",
    "StateDiverged",
    "StateRestored",
    "TrainingResumed",
    "UnknownData",
    "WorkerExited",
    "WorkersFinished",
]

Name = Annotated[str, Field(min_length=1)]
Table = dict[str, Any]


class EventData(BaseModel):
    """What an event says. Subclasses carry their stored `type` and `version`."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    type: ClassVar[str]
    version: ClassVar[int] = 1


# -- the run ---------------------------------------------------------------------------------------------------------


class RunOpened(EventData):
    """The run began: its size and the policy it is decided under."""

    type: ClassVar[str] = "run_opened"
    run_id: Name
    min_nodes: Annotated[int, Field(ge=1, le=1_000_000)]
    max_nodes: Annotated[int, Field(ge=1, le=1_000_000)]
    local_world_size: Annotated[int, Field(ge=1, le=1_000_000)]
    detection: bool
    checkpointing: bool
    policy: Table


class RunReopened(EventData):
    """The run was started again with the same id: all nodes have left, the next plan places anew."""

    type: ClassVar[str] = "run_reopened"
    run_id: Name


class PolicyChanged(EventData):
    """The policy is this one from here on."""

    type: ClassVar[str] = "policy_changed"
    policy: Table
    by: str
    why: str


# -- nodes -----------------------------------------------------------------------------------------------------------


class NodeJoined(EventData):
    """An agent was admitted. A new incarnation is a new life of the node."""

    type: ClassVar[str] = "node_joined"
    node: Name
    incarnation: Name
    address: str
    failure_domain: str | None = None
    fingerprint: str | None = None


class NodeLeft(EventData):
    """An agent said goodbye."""

    type: ClassVar[str] = "node_left"
    node: Name
    incarnation: Name
    reason: str


class NodeLost(EventData):
    """An agent went silent: its lease expired or its link closed."""

    type: ClassVar[str] = "node_lost"
    node: Name
    incarnation: Name
    reason: str


class NodeConfirmed(EventData):
    """The node answered a probe that was made because others saw errors."""

    type: ClassVar[str] = "node_confirmed"
    node: Name
    incarnation: Name


class NodeCordoned(EventData):
    """An operator keeps the node out of future plans."""

    type: ClassVar[str] = "node_cordoned"
    node: Name
    by: str
    why: str


class NodeUncordoned(EventData):
    """An operator lets the node serve again."""

    type: ClassVar[str] = "node_uncordoned"
    node: Name
    by: str
    why: str


class DeviceUnhealthy(EventData):
    """A device of the node reported a fault."""

    type: ClassVar[str] = "device_unhealthy"
    node: Name
    device: str
    metric: str
    severity: Literal["fatal", "warning"]


class ConfigDrifted(EventData):
    """The node's software or settings differ from the others' in these keys."""

    type: ClassVar[str] = "config_drifted"
    node: Name
    keys: Names


# -- one life of the worker group ------------------------------------------------------------------------------------


class GenerationStarted(EventData):
    """The node's workers of this generation run."""

    type: ClassVar[str] = "generation_started"
    generation: Count
    node: Name


class StateRestored(EventData):
    """The node's workers hold the state of this step."""

    type: ClassVar[str] = "state_restored"
    generation: Count
    node: Name
    step: Count
    tier: str


class RestoreFailed(EventData):
    """A copy the plan named could not be restored."""

    type: ClassVar[str] = "restore_failed"
    generation: Count
    node: Name
    step: Count
    slot: Count
    holder: str
    tier: str
    why: str


class TrainingResumed(EventData):
    """The first optimizer step was completed after every rank agreed on the restored state."""

    type: ClassVar[str] = "training_resumed"
    generation: Count
    step: Count


class WorkersFinished(EventData):
    """All workers of the node exited with code 0."""

    type: ClassVar[str] = "workers_finished"
    generation: Count
    node: Name


class ExitError(BaseModel):
    """How a worker failed; the fingerprint is equal for equal errors on different ranks."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    kind: Literal["signal", "exception", "out_of_memory", "collective", "nonfinite", "unknown"]
    type: str | None = None
    fingerprint: str | None = None


class WorkerExited(EventData):
    """A worker died; `ranks` batches the secondary exits of one node."""

    type: ClassVar[str] = "worker_exited"
    generation: Count
    node: Name
    rank: Count | None = None
    ranks: Ints | None = None
    exit_code: Int | None = None
    signal: Int | None = None
    step: Count | None = None
    error: ExitError | None = None

    @model_validator(mode="after")
    def _one_of_rank_and_ranks(self) -> "WorkerExited":
        if (self.rank is None) == (self.ranks is None):
            raise ValueError("exactly one of rank and ranks must be given")
        return self

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """The ranks this fact is about."""
        return self.ranks if self.ranks is not None else () if self.rank is None else (self.rank,)

    @property
    def in_order(self) -> bool:
        """True when the worker simply ended: no failure."""
        return self.exit_code == 0 and self.signal is None and self.error is None

    @property
    def secondary(self) -> bool:
        """True when the worker died because a peer vanished: an echo, not a cause."""
        return self.error is not None and self.error.kind == "collective"


# -- what the detectors saw ------------------------------------------------------------------------------------------


class Collective(BaseModel):
    """The collective a rank waits in."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    group: str
    seq: Count
    op: str


class Artifact(BaseModel):
    """Something saved aside as evidence: a stack, a flight record."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    name: str
    digest: str


class RankHung(EventData):
    """The ranks that hold the others up; none when it could not be localized."""

    type: ClassVar[str] = "rank_hung"
    generation: Count
    ranks: Ints
    step: Count | None = None
    phase: str | None = None
    stalled_ms: Count
    collective: Collective | None = None
    artifacts: Annotated[tuple[Artifact, ...] | None, Field(strict=False)] = None


class CollectiveDesynced(EventData):
    """Ranks issued different collectives; `ranks` is the minority."""

    type: ClassVar[str] = "collective_desynced"
    generation: Count
    ranks: Ints
    group: str
    collective_seq: Count


class RankSlowed(EventData):
    """A rank was slower than its peers for `windows` detector windows in a row."""

    type: ClassVar[str] = "rank_slowed"
    generation: Count
    rank: Count
    component: Literal["compute", "communication", "input", "checkpoint_io"]
    slowdown_pct: Count
    windows: Count


class InputStalled(EventData):
    """A rank waits for its data loader."""

    type: ClassVar[str] = "input_stalled"
    generation: Count
    rank: Count
    step: Count | None = None
    stalled_ms: Count


class CheckpointStalled(EventData):
    """A rank waits for checkpoint storage."""

    type: ClassVar[str] = "checkpoint_stalled"
    generation: Count
    rank: Count
    step: Count | None = None
    stalled_ms: Count


class ReplayChecked(EventData):
    """A step was computed again and compared; `ranks` are to blame where that could be told."""

    type: ClassVar[str] = "replay_checked"
    generation: Count
    step: Count
    recipe: str
    verdict: Literal["clean", "corrupt", "inconclusive"]
    ranks: Ints
    peers: Ints


class StateDiverged(EventData):
    """Replicas that must be equal are not; `ranks` is the minority, empty when there is none."""

    type: ClassVar[str] = "state_diverged"
    generation: Count
    step: Count
    ranks: Ints
    peers: Ints


class LossDiverged(EventData):
    """The loss or gradient norm of these ranks is not finite."""

    type: ClassVar[str] = "loss_diverged"
    generation: Count
    step: Count
    ranks: Ints


# -- checkpoints -----------------------------------------------------------------------------------------------------


class CheckpointCaptured(EventData):
    """Every rank of the slot is in its node's memory."""

    type: ClassVar[str] = "checkpoint_captured"
    generation: Count
    step: Count
    slot: Count
    node: Name
    digest: str
    bytes: Count


class CheckpointReplicated(EventData):
    """A verified copy is in the holder's memory."""

    type: ClassVar[str] = "checkpoint_replicated"
    generation: Count
    step: Count
    slot: Count
    holder: Name
    digest: str


class CheckpointFlushed(EventData):
    """A verified copy is on the holder's disk."""

    type: ClassVar[str] = "checkpoint_flushed"
    generation: Count
    step: Count
    slot: Count
    holder: Name
    digest: str


class CheckpointPersisted(EventData):
    """The framework's own durable checkpoint of the step is complete."""

    type: ClassVar[str] = "checkpoint_persisted"
    generation: Count
    step: Count
    checkpoint_id: str


class CheckpointDropped(EventData):
    """A copy is gone."""

    type: ClassVar[str] = "checkpoint_dropped"
    generation: Count
    step: Count
    slot: Count
    holder: Name
    tier: str
    why: str


# -- operators, time, decisions --------------------------------------------------------------------------------------


class OperatorRequested(EventData):
    """An operator asked for something; one request id acts once."""

    type: ClassVar[str] = "operator_requested"
    request: Name
    action: Literal["restart", "replace", "halt", "resume"]
    node: str | None = None
    by: str
    why: str


class DeadlinePassed(EventData):
    """A deadline the state named has passed."""

    type: ClassVar[str] = "deadline_passed"
    deadline: Name


class PlanCommitted(EventData):
    """A decision: the plan agents act on."""

    type: ClassVar[str] = "plan_committed"
    plan: Plan


class RunClosed(EventData):
    """A decision: the run is over."""

    type: ClassVar[str] = "run_closed"
    outcome: Literal["succeeded", "halted"]
    reason: str


class UnknownData(EventData):
    """An event of a type this version does not know, kept as it came. Never written, folds to nothing."""

    type: ClassVar[str] = "?"
    raw: Table
    raw_type: str


Data: TypeAlias = (
    RunOpened
    | RunReopened
    | PolicyChanged
    | NodeJoined
    | NodeLeft
    | NodeLost
    | NodeConfirmed
    | NodeCordoned
    | NodeUncordoned
    | DeviceUnhealthy
    | ConfigDrifted
    | GenerationStarted
    | StateRestored
    | RestoreFailed
    | TrainingResumed
    | WorkersFinished
    | WorkerExited
    | RankHung
    | CollectiveDesynced
    | RankSlowed
    | InputStalled
    | CheckpointStalled
    | ReplayChecked
    | StateDiverged
    | LossDiverged
    | CheckpointCaptured
    | CheckpointReplicated
    | CheckpointFlushed
    | CheckpointPersisted
    | CheckpointDropped
    | OperatorRequested
    | DeadlinePassed
    | PlanCommitted
    | RunClosed
    | UnknownData
)
"""Every event there is. `match` over it without a catch-all, so that mypy flags a forgotten one."""

_known: tuple[type[EventData], ...] = tuple(m for m in Data.__args__ if m is not UnknownData)
EVENT_TYPES: dict[str, type[EventData]] = {m.type: m for m in _known}
"""Stored type name to model."""

DECISIONS = frozenset({PlanCommitted.type, RunClosed.type})
"""Types the engine derives; every other type is a fact."""


@dataclass(frozen=True, slots=True)
class Event:
    """The envelope as exchanged: who saw what, and when by their own clock (which orders nothing)."""

    type: str
    at_ms: int
    source: str
    data: Data

    @classmethod
    def of(cls, data: Data, *, at_ms: int, source: str) -> "Event":
        """An event to be written.

        Raises:
            EventInvalid: the data has fields its type does not know.
        """
        event = cls(data.type, at_ms, source, data)
        _check_envelope(event.type, at_ms, source)
        _refuse_unknown(data)
        return event

    @classmethod
    def parse(cls, obj: Mapping[str, Any], *, strict: bool = True) -> "Event":
        """The event of a JSON object with `type`, `at_ms`, `source` and `data`.

        Args:
            obj: the object; other envelope keys are ignored.
            strict: as when writing: unknown types, fields and policy keys are errors. Otherwise they are kept.

        Raises:
            EventInvalid: naming type and key.
        """
        type_, at_ms, source, data = (obj.get(key) for key in ("type", "at_ms", "source", "data"))
        if not isinstance(type_, str) or not type_:
            raise EventInvalid("", "type", "must be a string")
        _check_envelope(type_, at_ms, source)
        if not isinstance(data, Mapping):
            raise EventInvalid(type_, "data", "must be an object")
        model = EVENT_TYPES.get(type_)
        if model is None:
            if strict:
                raise EventInvalid(type_, "type", f"unknown event type; known: {', '.join(sorted(EVENT_TYPES))}")
            return cls(type_, at_ms, source, UnknownData(raw=dict(data), raw_type=type_))  # type: ignore[arg-type]
        try:
            parsed = model.model_validate(dict(data))
        except ValidationError as error:
            first = error.errors()[0]
            raise EventInvalid(type_, ".".join(str(part) for part in first["loc"]) or "data", first["msg"]) from error
        if strict:
            _refuse_unknown(parsed)
        return cls(type_, at_ms, source, parsed)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """The object `parse` reads; fields that were left out stay out."""
        return {"type": self.type, "at_ms": self.at_ms, "source": self.source, "data": data_json(self.data)}


def data_json(data: EventData) -> dict[str, Any]:
    """The `data` object of an event, exactly the fields it was given."""
    if isinstance(data, UnknownData):
        return dict(data.raw)
    return data.model_dump(mode="json", exclude_unset=True)


def _check_envelope(type_: str, at_ms: Any, source: Any) -> None:
    if type(at_ms) is not int or not 0 <= at_ms < 2**53:
        raise EventInvalid(type_, "at_ms", "must be whole milliseconds since 1970")
    if not isinstance(source, str) or not source:
        raise EventInvalid(type_, "source", "must be a node id, `decider` or `operator:NAME`")


def _refuse_unknown(data: EventData) -> None:
    if isinstance(data, UnknownData):
        raise EventInvalid(data.raw_type, "type", "unknown event type")
    for key in _unknown_keys(data, ""):
        raise EventInvalid(data.type, key, "unknown field")
    if isinstance(data, RunOpened | PolicyChanged):
        try:
            RecoveryPolicy.from_table(data.policy)
        except PolicyInvalid as error:
            raise EventInvalid(data.type, f"policy.{error.key}", error.why) from error


def _unknown_keys(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, BaseModel):
        for key in value.__pydantic_extra__ or ():
            yield path + key
        for key in type(value).model_fields:
            yield from _unknown_keys(getattr(value, key), f"{path}{key}.")
    elif isinstance(value, tuple):
        for item in value:
            yield from _unknown_keys(item, path)
