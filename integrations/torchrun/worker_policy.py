"""The worker policy: the TOML file named by `lm_resiliency_worker_config`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from lmr.engine.canonical import canonical_bytes
from lmr.engine.policy import RecoveryPolicy
from lmr.integrations.gemini.checkpoint_policy import CheckpointPolicy
from lmr.integrations.scout.replay_policy import ReplayPolicy
from lmr.integrations.toml_file import read_toml
from lmr.integrations.torchrun.errors import ConfigInvalid


class WorkerPolicy(BaseModel):
    """What every node of a run must agree on. The defaults are the policy when no file is given."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1] = Field(1, description="of this file; must be given")
    interval: int = Field(1, ge=1, description="optimizer steps between two captures")
    enable_checkpoint: bool = Field(True, description="capture and replicate training state (GEMINI)")
    enable_detection: bool = Field(True, description="observe and check (SCOUT)")
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    replay: ReplayPolicy = ReplayPolicy()
    recovery: RecoveryPolicy = RecoveryPolicy()

    def differences(self, other: dict[str, Any]) -> list[str]:
        """The keys in which another node's policy (as `model_dump(mode="json")`) is different, dotted."""
        return sorted(_differing(self.model_dump(mode="json"), other, ""))

    def canonical(self) -> bytes:
        """Equal policies have equal bytes."""
        return canonical_bytes(self.model_dump(mode="json"))


def _differing(mine: dict[str, Any], theirs: dict[str, Any], path: str) -> list[str]:
    found = []
    for key in sorted(mine.keys() | theirs.keys()):
        a, b = mine.get(key), theirs.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differing(a, b, f"{path}{key}.")
        elif a != b:
            found.append(f"{path}{key}")
    return found


def load_worker_policy(path: Path) -> WorkerPolicy:
    """Read and check a policy file.

    Raises:
        ConfigInvalid: unreadable, not TOML, no `schema_version`, an unknown or ill-typed key.
    """
    table = read_toml(path, ConfigInvalid)
    if "schema_version" not in table:
        raise ConfigInvalid(f"{path}: key 'schema_version' is missing; allowed: 1")
    try:
        return WorkerPolicy.model_validate(table)
    except ValidationError as error:
        raise ConfigInvalid(f"{path}: {describe(error.errors()[0], WorkerPolicy)}") from None


def describe(fault: ErrorDetails, model: type[BaseModel]) -> str:
    """One validation fault in words: the key, what is wrong and what is allowed."""
    where = [str(part) for part in fault["loc"]]
    owner = model
    for part in where[:-1]:
        annotation = owner.model_fields[part].annotation if part in owner.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        owner = annotation
    key = ".".join(where)
    if fault["type"] == "extra_forbidden":
        return f"unknown key '{key}'; allowed: {', '.join(sorted(owner.model_fields))}"
    field = owner.model_fields.get(where[-1])
    allowed = fault["msg"].replace("Input should be ", "") if field is None else _allowed(field.annotation, fault)
    return f"key '{key}' is {fault['input']!r}; allowed: {allowed}"


def _allowed(annotation: Any, fault: ErrorDetails) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(str(value) for value in get_args(annotation))
    return fault["msg"].replace("Input should be ", "")
