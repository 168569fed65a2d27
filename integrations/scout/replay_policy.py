"""The `[replay]` table: how often SCOUT compares what must be equal."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ReplayPolicy(BaseModel):
    """Frequency of the checks that certify a step."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    compare_state: bool = Field(
        True, description="compare digests of the state that data-parallel peers must share, at every retained capture"
    )
