"""The `[replay]` table: what SCOUT observes and compares."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from lmr.integrations.scout.detector_policy import (
    BatchesPolicy,
    ContinuityPolicy,
    DesyncPolicy,
    DriftPolicy,
    HangPolicy,
    HealthPolicy,
    LossPolicy,
    PulsePolicy,
    RerunPolicy,
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
    batches: BatchesPolicy = BatchesPolicy()
    continuity: ContinuityPolicy = ContinuityPolicy()
    rerun: RerunPolicy = RerunPolicy()
    health: HealthPolicy = HealthPolicy()
    drift: DriftPolicy = DriftPolicy()

    @property
    def own_word_ms(self) -> int:
        """How long peers that differ without a majority are kept back: a rank's own continuity may name it."""
        if not (self.continuity.enabled and self.pulse.enabled):
            return 0
        return self.continuity.settle_ms + 2 * self.pulse.report_ms
