"""Ranks whose state changed while nobody wrote to it: what `continuity` found, on all ranks together."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmr.integrations.scout.detector_policy import ContinuityPolicy
from lmr.integrations.scout.standing import Standing

RECIPE = "continuity"


@dataclass(frozen=True)
class Damage:
    """State of `step` was no longer what the step had left; `ranks` are empty where it is the script's own doing.

    A capture of `step` may hold it already: it may be copied at any time before the next step writes.
    """

    step: int
    ranks: tuple[int, ...]
    peers: tuple[int, ...]


@dataclass
class AtRestDetector:
    """Compares the ranks' own findings, each of which needs no peer.

    A script that writes behind torch's back does so on every rank at the same step; memory does not fail like that. So
    more than half of the ranks damaged at one step accuse nobody. A single rank is believed.
    """

    policy: ContinuityPolicy
    _first_ms: dict[int, int] = field(default_factory=dict)
    _said: set[int] = field(default_factory=set)
    named: bool = field(default=False, init=False)
    """Whether a rank was named."""

    def look(self, standing: Standing, now_ms: int) -> list[Damage]:
        """The damage that is new, once every rank has looked at that step or has had its time to."""
        views = standing.views()
        found = []
        for step in sorted({v.damaged_step for v in views if v.damaged_step is not None} - self._said):
            first_ms = self._first_ms.setdefault(step, now_ms)
            looked = all(v.checked_step is not None and v.checked_step >= step for v in views)
            if not (looked and len(views) == len(standing.live)) and now_ms - first_ms < self.policy.settle_ms:
                continue
            self._said.add(step)
            ranks = tuple(sorted(v.rank for v in views if v.damaged_step == step))
            believed = 2 * len(ranks) <= len(standing.live) or len(standing.live) == 1
            self.named = self.named or believed
            found.append(Damage(step, ranks if believed else (), standing.live))
        return found

    def vouches(self, standing: Standing, step: int) -> bool:
        """Whether every live rank found its state of `step` as it had been left, and nobody's is damaged.

        Damage of an earlier step speaks against every later one, until it is judged and nobody is accused.
        """
        views = standing.views()
        if self.named or len(views) < len(standing.live):
            return False
        damaged = {v.damaged_step for v in views if v.damaged_step is not None}
        if any(found == step or (found < step and found not in self._said) for found in damaged):
            return False
        return all(v.checked_step is not None and v.checked_step >= step for v in views)
