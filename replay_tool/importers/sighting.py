"""What a reader finds in an artefact, before it is a fact of a job."""

from __future__ import annotations

from dataclasses import dataclass, field

from lmr.engine.events import Data

UNPLACED = "?"
"""Node of a fact whose artefact names only a rank; `placing` finds the node."""


@dataclass(frozen=True)
class Sighting:
    """One fact as an artefact tells it.

    Attributes:
        data: what was seen. Ranks and nodes are as the artefact names them.
        at_ms: UTC ms; None when the artefact carries no time.
        node: who saw it; None when the artefact does not say.
        where: file and line, for the reader of the result.
    """

    data: Data
    at_ms: int | None
    node: str | None
    where: str


@dataclass
class Gleaned:
    """Everything one artefact tells.

    Attributes:
        sightings: facts, in the order of the artefact.
        nodes: host names in slot order, when the artefact knows the placement.
        standby: host names that stood by.
        ranks_of: global ranks seen on a host.
        local_world_size: ranks of a node, when the artefact says so.
        notes: what was seen and could not be made a fact.
    """

    sightings: list[Sighting] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    standby: list[str] = field(default_factory=list)
    ranks_of: dict[str, set[int]] = field(default_factory=dict)
    local_world_size: int | None = None
    notes: list[str] = field(default_factory=list)

    def saw_rank(self, host: str, rank: int) -> None:
        """Remembers that `rank` runs on `host`."""
        self.ranks_of.setdefault(host, set()).add(rank)


@dataclass(frozen=True)
class Job:
    """What the reader may assume about the job.

    Attributes:
        nodes: node names in slot order; empty when nothing was said.
        local_world_size: ranks of a node, None when nothing was said.
        year: the year of log lines that carry none.
    """

    nodes: tuple[str, ...] = ()
    local_world_size: int | None = None
    year: int = 1970

    def node_in(self, path_parts: tuple[str, ...]) -> str | None:
        """The node that a path names: a folder called like it, or a file name that contains it."""
        for part in reversed(path_parts):
            for node in sorted(self.nodes, key=len, reverse=True):
                if part == node or node in part.replace("_", ".").split("."):
                    return node
        return None

    def first_rank(self, node: str | None) -> int | None:
        """Global rank of the node's local rank 0, when the job's shape was said."""
        if node in self.nodes and self.local_world_size is not None:
            return self.nodes.index(node) * self.local_world_size
        return None
