"""The same place in a group's sequence, but different collectives: the minority went another way.

The sequence is that of public calls, the fingerprint what the members must agree on. One rank that leaves a call out
is at every later number compared with the next call of the others: it differs there, unless all calls are alike; then
the run hangs at the end, and the hang names the rank.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lmr.integrations.scout.detector_policy import DesyncPolicy
from lmr.integrations.scout.standing import Standing

SEQUENCES_KEPT = 256


@dataclass(frozen=True)
class Desync:
    """Members of a group called different collectives at one place; `ranks` is the minority, none without majority."""

    ranks: tuple[int, ...]
    group: str
    sequence: int


@dataclass
class DesyncDetector:
    """Collects what each rank called at each place.

    Args:
        policy: thresholds.
    """

    policy: DesyncPolicy
    _calls: dict[int, dict[int, dict[int, int]]] = field(default_factory=dict)
    """Group, sequence, rank: fingerprint."""
    _seen_ms: dict[tuple[int, int], int] = field(default_factory=dict)
    _said: set[int] = field(default_factory=set)

    @property
    def has_spoken(self) -> bool:
        """Whether ranks have gone different ways: that they do not get on is no news then."""
        return bool(self._said)

    def look(self, standing: Standing, now_ms: int) -> list[Desync]:
        """Take the newest summaries in; what can be told now, once a group."""
        for view in standing.views():
            for group, sequence, fingerprint in view.recent:
                self._calls.setdefault(group, {}).setdefault(sequence, {})[view.rank] = fingerprint
        found = []
        for group, places in self._calls.items():
            self._forget(places)
            if group not in self._said:
                verdict = self._judge(standing, group, places, now_ms)
                if verdict is not None:
                    self._said.add(group)
                    found.append(verdict)
        return found

    def _judge(self, standing: Standing, group: int, places: dict[int, dict[int, int]], now_ms: int) -> Desync | None:
        for sequence in sorted(places):
            told = places[sequence]
            if len(set(told.values())) < 2:
                continue
            seen_ms = self._seen_ms.setdefault((group, sequence), now_ms)
            members = standing.members.get(group, ())
            if len(told) < len(members) and now_ms - seen_ms < self.policy.settle_ms:
                return None
            fingerprint, count = Counter(told.values()).most_common(1)[0]
            minority = tuple(sorted(rank for rank, f in told.items() if f != fingerprint))
            named = minority if 2 * count > max(len(told), len(members)) else ()
            return Desync(named, standing.names.get(group, str(group)), sequence)
        return None

    @staticmethod
    def _forget(places: dict[int, dict[int, int]]) -> None:
        for sequence in sorted(places)[: max(0, len(places) - SEQUENCES_KEPT)]:
            del places[sequence]
