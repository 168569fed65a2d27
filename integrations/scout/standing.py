"""Everything the run's ranks have said about themselves in one generation: what the detectors look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from lmr.integrations.scout.summary import Summary


@dataclass
class Standing:
    """The newest summary of every rank.

    How long a rank has stood still is counted anew from where its process was stopped or goes on again, from where the
    whole job goes on, and from where its node is heard again: what happened unseen, or to everybody, is held against
    nobody.

    Args:
        generation: of the worker group.
        world_size: how many ranks it has.
        stale_ms: a node that says nothing for longer was not there.
    """

    generation: int
    world_size: int
    stale_ms: int = 2_500
    ranks: dict[int, Summary] = field(default_factory=dict)
    heard_ms: dict[int, int] = field(default_factory=dict)
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    calls: dict[int, str] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    """Ranks whose process ended other than well: what the others do from here on is an echo."""
    _counted_ms: dict[int, int] = field(default_factory=dict)
    """From when on a rank's stillness counts, where it is not from its own last sign of life."""

    def hear(self, summary: Summary, now_ms: int) -> None:
        """A rank's newest summary."""
        rank = summary.rank
        if not 0 <= rank < self.world_size:
            return
        before = self.ranks.get(rank)
        if before is None:
            counts_anew = summary.stopped
        else:
            counts_anew = before.stopped != summary.stopped or now_ms - self.heard_ms[rank] > self.stale_ms
        if counts_anew:
            self._counted_ms[rank] = now_ms
        counted_ms = self._counted_ms.get(rank)
        still_ms = summary.still_ms if counted_ms is None else min(summary.still_ms, now_ms - counted_ms)
        self.ranks[rank] = replace(summary, still_ms=still_ms)
        self.heard_ms[rank] = now_ms
        if all(live in self.ranks and self.ranks[live].stopped for live in self.live):
            self._counted_ms |= dict.fromkeys(self.live, now_ms)

    def learn(self, groups: dict[str, Any], calls: dict[str, Any]) -> None:
        """Who is in a process group, and what a fingerprint stands for.

        Raises:
            KeyError, TypeError, ValueError: this is no such thing.
        """
        for identity, about in groups.items():
            ranks = about["ranks"]
            self.members[int(identity)] = tuple(range(self.world_size)) if ranks is None else tuple(map(int, ranks))
            self.names[int(identity)] = str(about["name"])
        for fingerprint, call in calls.items():
            self.calls[int(fingerprint)] = str(call)

    @property
    def live(self) -> tuple[int, ...]:
        """Ranks whose script has not returned."""
        return tuple(r for r in range(self.world_size) if r not in self.finished)

    def complete(self, now_ms: int, stale_ms: int) -> bool:
        """Whether every live rank is known as it is now, and none has died: only then can ranks be compared."""
        return not self.lost and all(
            rank in self.ranks and now_ms - self.heard_ms[rank] <= stale_ms and not self.ranks[rank].gone
            for rank in self.live
        )

    def views(self, ranks: Iterable[int] | None = None) -> list[Summary]:
        """The newest summaries, of live ranks only."""
        wanted = self.live if ranks is None else ranks
        return [self.ranks[r] for r in wanted if r in self.ranks and r not in self.finished]
