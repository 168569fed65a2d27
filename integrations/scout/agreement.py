"""State agreement: digests of the state that data-parallel peers must share, compared by strict majority.

Replicas that are alike may be alike full of not-a-number. So a step is clean only when the trained state of every rank
is finite, too; where no rank has peers, that alone is what is checked.

Each vault digests what its ranks captured, outside the training process, and sends the digests here; nothing is
compared inside the training step. After SCOUT (arXiv 2608.11034): equivalent peers are compared, a strict majority
names the outlier, without one nobody is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

KEPT_STEPS = 64
RECIPE = "state_agreement"
FINITE_RECIPE = "state_finite"


@dataclass(frozen=True)
class Verdict:
    """The result for one step and one group of peers.

    `verdict` is `clean`, `corrupt` (peers differ; `ranks` are the outliers a majority names) or `inconclusive` (the
    state of `ranks` is not finite, which does not tell a broken machine from a diverged training).
    """

    step: int
    verdict: Literal["clean", "corrupt", "inconclusive"]
    ranks: tuple[int, ...]
    peers: tuple[int, ...]
    recipe: str = RECIPE

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong with the step."""
        return self.verdict == "clean"


@dataclass(frozen=True)
class Told:
    """A vault's word on one rank's capture: digest of its shared part, who must have the same, whether it is finite."""

    digest: str
    peers: tuple[int, ...]
    finite: bool


@dataclass
class _Step:
    """What is known of one step."""

    told: dict[int, Told] = field(default_factory=dict)
    compared: dict[tuple[int, ...], Verdict] = field(default_factory=dict)


@dataclass
class Agreement:
    """Collects what is told of one generation's captures.

    Peers that differ are reported as soon as all of them have spoken; that a step is clean, or not finite, once every
    rank of the world has.

    Args:
        world_size: number of ranks.
        finite_checked: whether the vaults look for what is not finite.
    """

    world_size: int
    finite_checked: bool
    _steps: dict[int, _Step] = field(default_factory=dict)
    _newest: int = 0

    def take(self, step: int, told: dict[int, Told]) -> list[Verdict]:
        """Take one node's word in.

        Args:
            step: the captured step.
            told: by rank.

        Returns:
            The verdicts that are due with this.
        """
        if step <= self._newest - KEPT_STEPS:
            return []
        known = self._steps.setdefault(step, _Step())
        already_whole = len(known.told) == self.world_size
        known.told.update({rank: one for rank, one in told.items() if rank not in known.told})
        self._forget(step)
        found = [verdict for verdict in self._compare(step, known) if verdict.verdict == "corrupt"]
        if already_whole or len(known.told) < self.world_size:
            return found
        world = tuple(range(self.world_size))
        odd = tuple(sorted(rank for rank, one in known.told.items() if not one.finite))
        if odd:
            return [*found, Verdict(step, "inconclusive", odd, world, FINITE_RECIPE)]
        if not known.compared and self.finite_checked:
            return [Verdict(step, "clean", (), world, FINITE_RECIPE)]
        return found + [verdict for verdict in known.compared.values() if verdict.clean]

    def _compare(self, step: int, known: _Step) -> list[Verdict]:
        """Verdicts of the groups that are complete and have not been compared."""
        fresh = []
        for peers in {one.peers for one in known.told.values()}:
            if len(peers) < 2 or peers in known.compared or not all(rank in known.told for rank in peers):
                continue
            known.compared[peers] = _verdict(step, peers, {rank: known.told[rank].digest for rank in peers})
            fresh.append(known.compared[peers])
        return fresh

    def _forget(self, step: int) -> None:
        self._newest = max(self._newest, step)
        if len(self._steps) > 2 * KEPT_STEPS:
            self._steps = {number: one for number, one in self._steps.items() if number > self._newest - KEPT_STEPS}


def _verdict(step: int, peers: tuple[int, ...], digests: dict[int, str]) -> Verdict:
    digest, count = Counter(digests.values()).most_common(1)[0]
    if count == len(peers):
        return Verdict(step, "clean", (), peers)
    named = tuple(sorted(rank for rank, d in digests.items() if d != digest)) if 2 * count > len(peers) else ()
    return Verdict(step, "corrupt", named, peers)
