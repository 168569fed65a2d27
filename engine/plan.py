"""The plan: one committed decision, as recorded in the log and carried out by the agents.

A plan moves the worker group from `from_generation` to `to_generation`, or holds it, or halts the run. It is a value:
everything it says follows from the records up to `decided_through`.
"""

import hashlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lmr.engine.canonical import MAX_INTEGER, canonical_bytes

Int = Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Ints = Annotated[tuple[Count, ...], Field(strict=False)]
Names = Annotated[tuple[str, ...], Field(strict=False)]

Action = Literal["start", "restart", "replace", "hold", "halt"]
Tier = Literal["memory", "replica", "disk", "durable"]
Trust = Literal["certified", "uncertified", "initial"]
Confidence = Literal["direct", "attributed", "ambiguous"]


class _Value(BaseModel):
    # Unknown fields are kept on read (a newer writer); `Event.parse(strict=True)` refuses them on write.
    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class Cause(_Value):
    """Who or what is blamed, and how sure that is."""

    kind: str
    nodes: Names
    ranks: Ints
    confidence: Confidence


class Assignment(_Value):
    """One slot of the next generation: the node, which life of it, and the ranks it runs, from `first_rank` on."""

    slot: Count
    node: str
    incarnation: str
    first_rank: Count
    local_world_size: Count


class Source(_Value):
    """Where one slot's shard is read from. The holder of a durable copy is the checkpoint's own id."""

    slot: Count
    holder: str
    tier: Tier


class Checkpoint(_Value):
    """The step to restore; `lost_steps` is what the step costs in training already done."""

    step: Count
    trust: Trust
    lost_steps: Count
    sources: Annotated[tuple[Source, ...], Field(strict=False)]


class Rejected(_Value):
    """An option that was not taken, why, and the seqs that say so."""

    option: str
    reason: str
    evidence: Ints


class Economics(_Value):
    """Both sides of the cost-aware rule, in milliseconds of the whole job."""

    gain_ms: Int
    cost_ms: Int


class Plan(_Value):
    """One committed decision."""

    plan_id: str
    run_id: str
    incident: Count
    from_generation: Int
    to_generation: Int
    action: Action
    cause: Cause
    assignments: Annotated[tuple[Assignment, ...], Field(strict=False)]
    quarantined: Names
    standby: Names
    checkpoint: Checkpoint | None
    reason: str
    evidence: Ints
    rejected: Annotated[tuple[Rejected, ...], Field(strict=False)]
    economics: Economics | None = None
    decided_through: Count
    policy_digest: str
    engine: str

    @staticmethod
    def id_of(fields: "Plan | dict[str, Any]") -> str:
        """Hex SHA-256 of everything a plan says except its id."""
        content = fields.model_dump(mode="json", exclude_unset=True) if isinstance(fields, Plan) else dict(fields)
        content.pop("plan_id", None)
        return hashlib.sha256(canonical_bytes(content)).hexdigest()
