"""The `[replay]` table: what SCOUT observes and compares."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from lmr.integrations.scout.detector_policy import (
    DesyncPolicy,
    DriftPolicy,
    HangPolicy,
    HealthPolicy,
    LossPolicy,
    PulsePolicy,
    StallPolicy,
    StragglerPolicy,
)


class ReplayPolicy(BaseModel):
    """Checks that certify a step, and a table for each detector."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    compare_state: bool = Field(
        True, description="compare digests of the state that data-parallel peers must share, at every retained capture"
    )
    pulse: PulsePolicy = PulsePolicy()
    hang: HangPolicy = HangPolicy()
    desync: DesyncPolicy = DesyncPolicy()
    straggler: StragglerPolicy = StragglerPolicy()
    stall: StallPolicy = StallPolicy()
    loss: LossPolicy = LossPolicy()
    health: HealthPolicy = HealthPolicy()
    drift: DriftPolicy = DriftPolicy()
