"""Ranks that wait for storage: for a batch, or for a save."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lmr.integrations.scout.detector_policy import HangPolicy, StallPolicy
from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.standing import Standing
from lmr.integrations.scout.summary import Summary


@dataclass(frozen=True)
class Stall:
    """One rank waits for storage."""

    kind: Literal["input", "checkpoint"]
    rank: int
    step: int | None
    stalled_ms: int


@dataclass
class StallDetector:
    """Says each stall once.

    Args:
        policy: thresholds.
        hang: for how long a first batch may take.
    """

    policy: StallPolicy
    hang: HangPolicy
    _said: set[tuple[str, int, int | None, int]] = field(default_factory=set)

    def look(self, standing: Standing) -> list[Stall]:
        """The stalls that are new."""
        views = standing.views()
        found = []
        for view in views:
            kind = self._kind(view, views)
            key = (kind or "", view.rank, view.step, view.batches)
            if kind is not None and key not in self._said:
                self._said.add(key)
                found.append(Stall(kind, view.rank, view.step, view.still_ms))
        return found

    def _kind(self, view: Summary, views: list[Summary]) -> Literal["input", "checkpoint"] | None:
        if view.stopped or view.gone:
            return None
        if view.phase == Phase.DATA and self.policy.input_enabled:
            longest = max(other.longest_data_ms for other in views)
            limit = max(self.policy.input_floor_ms, self.policy.input_factor * longest)
            if view.fresh:
                first = max(other.longest_first_ms for other in views)
                limit = max(limit, self.policy.input_factor * first)
            if view.batches < 2:  # worker processes start, caches are cold
                limit = max(limit, self.hang.long_section_s * 1000)
            return "input" if view.still_ms >= limit else None
        if view.phase == Phase.CHECKPOINT and self.policy.checkpoint_enabled:
            longest = max(other.longest_save_ms for other in views)
            limit = max(self.policy.checkpoint_floor_ms, self.policy.checkpoint_factor * longest)
            return "checkpoint" if view.still_ms >= limit else None
        return None
