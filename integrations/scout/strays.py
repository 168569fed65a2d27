"""Ranks whose loaders gave them other batches than their samplers prescribe: what `batch_order` found, on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from lmr.integrations.scout.detector_policy import BatchesPolicy
from lmr.integrations.scout.standing import Standing

log = structlog.get_logger("lmr.scout")

RECIPE = "batches"


@dataclass(frozen=True)
class Stray:
    """From `step` on the state is not what it should be: gradients of these ranks come from other data."""

    step: int
    ranks: tuple[int, ...]
    peers: tuple[int, ...]


@dataclass
class StrayDetector:
    """Compares the ranks' own findings, each of which needs no peer.

    Scripts that go their own ways with a loader do so on most ranks: then nobody is accused. Neither is
    a rank without peers.
    """

    policy: BatchesPolicy
    _first_ms: int | None = None
    _said: set[int] = field(default_factory=set)
    named: bool = field(default=False, init=False)
    """Whether a rank was named."""

    def look(self, standing: Standing, now_ms: int) -> Stray | None:
        """The ranks that are new, once every rank has taken that step or has had its time to."""
        views = standing.views()
        steps = {view.rank: view.strayed_step for view in views if view.strayed_step is not None}
        new = {rank: step for rank, step in steps.items() if rank not in self._said}
        if not new:
            self._first_ms = None
            return None
        self._first_ms = now_ms if self._first_ms is None else self._first_ms
        last = max(new.values())
        passed = len(views) == len(standing.live) and all(v.step is not None and v.step >= last for v in views)
        if not passed and now_ms - self._first_ms < self.policy.settle_ms:
            return None
        self._first_ms = None
        self._said |= new.keys()
        if 2 * len(steps) > len(standing.live):
            log.warning("loaders_go_their_own_ways", ranks=sorted(steps), step=min(steps.values()))
            return None
        self.named = True
        return Stray(min(new.values()), tuple(sorted(new)), standing.live)

    def vouches(self, standing: Standing, step: int) -> bool:
        """Whether no rank is known to have got other batches up to `step`, but those nobody is accused for."""
        strayed = {v.rank: v.strayed_step for v in standing.views() if v.strayed_step is not None}
        return not self.named and all(first > step for rank, first in strayed.items() if rank not in self._said)
