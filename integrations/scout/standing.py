"""Everything the run's ranks have said about themselves in one generation: what the detectors look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lmr.integrations.scout.summary import Summary


@dataclass
class Standing:
    """The newest summary of every rank.

    Args:
        generation: of the worker group.
        world_size: how many ranks it has.
    """

    generation: int
    world_size: int
    ranks: dict[int, Summary] = field(default_factory=dict)
    heard_ms: dict[int, int] = field(default_factory=dict)
    members: dict[int, tuple[int, ...]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    calls: dict[int, str] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    """Ranks whose process ended other than well: what the others do from here on is an echo."""

    def hear(self, summary: Summary, now_ms: int) -> None:
        """A rank's newest summary."""
        if 0 <= summary.rank < self.world_size:
            self.ranks[summary.rank] = summary
            self.heard_ms[summary.rank] = now_ms

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
