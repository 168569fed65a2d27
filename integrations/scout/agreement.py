"""State agreement: digests of the state that data-parallel peers must share, compared by strict majority.

Each vault digests what its ranks captured, outside the training process, and sends the digests here; nothing is
compared inside the training step. After SCOUT (arXiv 2608.11034): equivalent peers are compared, a strict majority
names the outlier, without one nobody is named.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

KEPT_STEPS = 64
RECIPE = "state_agreement"


@dataclass(frozen=True)
class Verdict:
    """The result for one step and one group of peers; `ranks` are the outliers a majority names."""

    step: int
    clean: bool
    ranks: tuple[int, ...]
    peers: tuple[int, ...]


@dataclass
class Agreement:
    """Collects digests of one generation and compares each step once all its peers have spoken."""

    _seen: dict[tuple[int, tuple[int, ...]], dict[int, str]] = field(default_factory=dict)
    _done: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)

    def digests(self, step: int, ranks: dict[int, tuple[str, tuple[int, ...]]]) -> list[Verdict]:
        """Take one node's digests in.

        Args:
            step: the captured step.
            ranks: for each rank its digest and the ranks it must agree with, itself included.

        Returns:
            Verdicts of the groups that are complete with this.
        """
        verdicts = []
        for rank, (digest, peers) in ranks.items():
            key = (step, peers)
            if len(peers) < 2 or key in self._done:
                continue
            seen = self._seen.setdefault(key, {})
            seen[rank] = digest
            if len(seen) == len(peers):
                verdicts.append(_compare(step, peers, self._seen.pop(key)))
                self._done.add(key)
        self._forget(step)
        return verdicts

    def _forget(self, newest: int) -> None:
        if len(self._seen) + len(self._done) > 4 * KEPT_STEPS:
            self._seen = {key: seen for key, seen in self._seen.items() if key[0] > newest - KEPT_STEPS}
            self._done = {key for key in self._done if key[0] > newest - KEPT_STEPS}


def _compare(step: int, peers: tuple[int, ...], digests: dict[int, str]) -> Verdict:
    digest, count = Counter(digests.values()).most_common(1)[0]
    if count == len(peers):
        return Verdict(step, clean=True, ranks=(), peers=peers)
    named = tuple(sorted(rank for rank, d in digests.items() if d != digest)) if 2 * count > len(peers) else ()
    return Verdict(step, clean=False, ranks=named, peers=peers)
