"""Campaign files: which fault strikes where and when. TOML, checked before anything starts.

    schema_version = 1
    seed = 7

    [[faults]]
    effect = "tensor_corruption"
    rank = 3
    step = 40

Whatever is left open (the rank, a step between two, the bit, the parameter) is drawn from the seed, so the same file
strikes the same place again.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from typing_extensions import Self

from lmr.integrations.faults.effects import EFFECTS
from lmr.integrations.faults.errors import CampaignInvalid
from lmr.integrations.toml_file import read_toml

ENV_CAMPAIGN = "LMR_FAULT_CAMPAIGN"
"""Path of the campaign; without it the part that runs in trainers cannot even be imported."""
ENV_MARKS = "LMR_FAULT_MARKS"
"""Folder of the marks."""

Target = Literal["update", "collective", "batch"]


class _Fault(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    node: str | None = Field(
        None, description="strikes only on the node of this name: LM_RESILIENCY_NODE_ID, or the host's"
    )


class _InStep(_Fault):
    rank: int | None = Field(None, ge=0, description="global rank; drawn from the seed where not given")
    step: int | tuple[int, int] = Field(description="number of the step, from 1; two numbers: drawn between them")
    times: int = Field(1, ge=1, le=1_000, description="how often it strikes; again when its step comes again")

    @model_validator(mode="after")
    def _steps_make_sense(self) -> Self:
        first, last = self.step if isinstance(self.step, tuple) else (self.step, self.step)
        if not 1 <= first <= last:
            raise ValueError("step counts from 1, and the first of two is the smaller")
        return self


class BitFlip(_InStep):
    """One bit of one tensor flips."""

    effect: Literal["tensor_corruption", "payload_corruption"]
    bit: int | None = Field(None, ge=0, le=63, description="place of the bit in the element, from the lowest")


class Plain(_InStep):
    """Nothing more to say than where and when."""

    effect: Literal[
        "stale_state",
        "hang",
        "exception",
        "resource_exhaustion",
        "resource_unavailable",
        "io_error",
        "collective_desync",
        "message_drop",
        "checkpoint_corruption",
        "checkpoint_truncation",
        "checkpoint_missing",
    ]


class Targeted(_InStep):
    """Something the rank does is lost, done twice or done in another order."""

    effect: Literal["drop", "duplicate", "reorder"]
    target: Target = Field("update", description="what of the rank's is meant")

    @model_validator(mode="after")
    def _updates_have_no_order(self) -> Self:
        if (self.effect, self.target) == ("reorder", "update"):
            raise ValueError("reorder needs target = 'collective' or 'batch': a step has one update")
        return self


class Lasting(_InStep):
    """The rank takes longer."""

    effect: Literal["delay", "timeout"]
    ms: int = Field(ge=1, le=86_400_000, description="milliseconds a step takes longer")
    for_steps: int = Field(1, ge=1, description="how many steps of this process")


class Termination(_InStep):
    """SIGKILL."""

    effect: Literal["process_termination"]
    scope: Literal["process", "node"] = Field("process", description="the trainer, or all that runs on its node")


class Partition(_InStep):
    """The node's network goes down."""

    effect: Literal["network_partition"]
    node: str | None = Field(description="which node is put into a network namespace")  # required here
    heal_ms: int | None = Field(None, ge=1, description="milliseconds until the network is back; not given: never")


class Drift(_Fault):
    """The node is set up differently from its start on."""

    effect: Literal["config_drift"]
    node: str | None = Field(description="which node")  # required here
    environ: dict[str, str] = Field(min_length=1, description="environment its command is started with")


Fault = Annotated[BitFlip | Plain | Targeted | Lasting | Termination | Partition | Drift, Field(discriminator="effect")]
InStep = BitFlip | Plain | Targeted | Lasting | Termination | Partition


class Campaign(BaseModel):
    """Faults in order; a fault's place in the file is its number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1]
    seed: int = Field(0, description="of everything that is left open")
    faults: tuple[Fault, ...] = Field(min_length=1, strict=False)

    def random(self, number: int) -> random.Random:
        """What fault `number` draws from; the same sequence in every process."""
        return random.Random(f"{self.seed}/{number}")

    def place(self, number: int, world_size: int) -> tuple[int, int]:
        """Rank and step of a fault that strikes in a step."""
        fault = self.faults[number]
        assert not isinstance(fault, Drift)
        drawn = self.random(number)
        rank = drawn.randrange(world_size) if fault.rank is None else fault.rank
        return rank, drawn.randint(*fault.step) if isinstance(fault.step, tuple) else fault.step


def load_campaign(path: Path) -> Campaign:
    """Read and check a campaign file.

    Raises:
        CampaignInvalid: unreadable, not TOML, or a key that is unknown, missing or not allowed so.
    """
    table = read_toml(path, CampaignInvalid)
    for fault in table["faults"] if isinstance(table.get("faults"), list) else []:
        if isinstance(fault, dict) and isinstance(fault.get("step"), list):
            fault["step"] = tuple(fault["step"])  # TOML has no tuples, and nothing else is converted
    try:
        return Campaign.model_validate(table)
    except ValidationError as error:
        raise CampaignInvalid(f"{path}: {_describe(error.errors()[0])}") from None


_ALTERNATIVES = ("int", "tuple[int, int]")
"""What pydantic adds to the place of a value that may be of several types."""


def _describe(fault: ErrorDetails) -> str:
    """One fault of the file in words."""
    where = [part for part in fault["loc"] if part not in EFFECTS and part not in _ALTERNATIVES]
    kind = fault["type"]
    model = _model_at(fault["loc"])
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".")
    if kind == "union_tag_not_found":
        return f"{key}: key 'effect' is missing; allowed: {', '.join(EFFECTS)}"
    if kind == "union_tag_invalid":
        return f"key '{key}.effect' is {fault['input'].get('effect')!r}; allowed: {', '.join(EFFECTS)}"
    if kind == "missing":
        return f"key '{key}' is missing"
    if kind == "extra_forbidden":
        return f"unknown key '{key}'; allowed: {', '.join(model.model_fields)}"
    if kind == "value_error":
        return f"{key}: {fault['msg'].removeprefix('Value error, ')}"
    return f"key '{key}' is {fault['input']!r}; allowed: {fault['msg'].replace('Input should be ', '')}"


def _model_at(where: tuple[int | str, ...]) -> type[BaseModel]:
    """Whose keys they are: of the campaign, or of the kind of fault the place names."""
    for model in (BitFlip, Plain, Targeted, Lasting, Termination, Partition, Drift):
        if any(part in get_args(model.model_fields["effect"].annotation) for part in where):
            return model
    return Campaign
