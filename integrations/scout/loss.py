"""Ranks whose loss or gradient norm is not finite in a step that was taken."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmr.integrations.scout.detector_policy import LossPolicy
from lmr.integrations.scout.standing import Standing


@dataclass(frozen=True)
class Divergence:
    """The first step with a loss that is not finite, and the ranks that had it there."""

    step: int
    ranks: tuple[int, ...]


@dataclass
class LossDetector:
    """Says a generation's first divergence, once every rank has taken that step.

    In the step after it all ranks have it, because gradients are averaged: only the first step tells who began.
    """

    policy: LossPolicy
    _first_ms: int | None = None
    _said: bool = field(default=False)

    def look(self, standing: Standing, now_ms: int) -> Divergence | None:
        """The divergence, once."""
        steps = {v.rank: v.nonfinite_step for v in standing.views() if v.nonfinite_step is not None}
        if self._said or not steps:
            return None
        if self._first_ms is None:
            self._first_ms = now_ms
        first = min(steps.values())
        everyone = len(standing.views()) == len(standing.live)
        passed = everyone and all(view.step is not None and view.step >= first for view in standing.views())
        if not passed and now_ms - self._first_ms < self.policy.settle_ms:
            return None
        self._said = True
        return Divergence(first, tuple(sorted(rank for rank, step in steps.items() if step == first)))
