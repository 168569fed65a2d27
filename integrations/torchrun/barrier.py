"""Where the nodes of a generation wait for each other."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Barrier:
    """Who has arrived for one generation, and who has its shard at hand; agents say it again to a new decider."""

    generation: int
    arrived: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    """Nodes that are ready to start workers; the one of slot 0 with its store."""
    restorable: set[str] = field(default_factory=set)

    def arrive(self, node: str, store: dict[str, Any] | None, all_nodes: AbstractSet[str]) -> bool:
        """One node is ready. True when all are: everybody may start, also one that missed it before."""
        self.arrived[node] = store
        return self.arrived.keys() >= all_nodes

    def has_shard(self, node: str, all_nodes: AbstractSet[str]) -> bool:
        """One node can load. True when all can: nobody loads before, so that a restore is all or nothing."""
        self.restorable.add(node)
        return self.restorable >= all_nodes
