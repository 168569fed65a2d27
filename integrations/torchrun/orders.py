"""One node's part of a committed plan, and where its state goes and comes from.

A plan of 2,000 nodes has 2,000 assignments; an agent needs its own. What travels to a node does not grow with the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from lmr.engine.plan import Assignment, Plan, Source

FENCE_PEERS = 16
"""Nodes of the generation a cut-off node asks. All of them in a small job, a sample in a large one."""


class Reachable(Protocol):
    """What must be known of a connected node."""

    node: str
    incarnation: str
    address: str
    vault_port: int | None
    peer_port: int
    failure_domain: str | None


@dataclass(frozen=True)
class Orders:
    """What a plan asks of one node."""

    generation: int
    plan_id: str
    slots: int
    step: int
    mine: Assignment | None
    """None: this node stands by, or is out."""
    source: dict[str, Any] | None = None
    """Where the own slot's shard is: the plan's source with `host` and `port` of its holder's vault."""
    replicate_to: tuple[dict[str, Any], ...] = ()
    peers: tuple[tuple[str, int], ...] = ()
    """Address and peer port of others of the generation."""
    head: dict[str, Any] = field(default_factory=dict)
    """Seq and hash of the plan's record."""
    history: str = ""
    """Hash of the log's first record: tells this run's log from another of the same id."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks of this node."""
        if self.mine is None:
            return ()
        return tuple(range(self.mine.first_rank, self.mine.first_rank + self.mine.local_world_size))

    def to_wire(self) -> dict[str, Any]:
        """As a message's values."""
        return {**asdict(self), "mine": self.mine.model_dump() if self.mine is not None else None}

    @classmethod
    def from_wire(cls, told: dict[str, Any]) -> Orders:
        """From a message's values.

        Raises:
            KeyError, TypeError, ValueError: not orders.
        """
        mine = told["mine"]
        return cls(
            generation=told["generation"],
            plan_id=told["plan_id"],
            slots=told["slots"],
            step=told["step"],
            mine=Assignment.model_validate(mine) if mine is not None else None,
            source=told["source"],
            replicate_to=tuple(told["replicate_to"]),
            peers=tuple((host, port) for host, port in told["peers"]),
            head=told["head"],
            history=told["history"],
        )


class Dispatch:
    """Writes every node's orders for one plan.

    Args:
        plan: the committed plan.
        head: seq and hash of its record.
        replicas: copies of each slot on other nodes.
        standby_slots: slots whose state each standby holds besides.
        history: hash of the log's first record.
    """

    def __init__(self, plan: Plan, head: dict[str, Any], replicas: int, standby_slots: int, history: str) -> None:
        self.plan = plan
        self._standby_slots = standby_slots
        self._history = history
        self._head = head
        self._replicas = replicas
        self._ring = sorted(plan.assignments, key=lambda a: a.slot)
        self._place = {a.node: index for index, a in enumerate(self._ring)}
        checkpoint = plan.checkpoint
        self._step = checkpoint.step if checkpoint is not None else 0
        self._sources: dict[int, Source] = {s.slot: s for s in checkpoint.sources} if checkpoint is not None else {}

    def assignment(self, node: str, incarnation: str) -> Assignment | None:
        """The node's slot, if the plan names this life of it."""
        index = self._place.get(node)
        if index is None or self._ring[index].incarnation != incarnation:
            return None
        return self._ring[index]

    def orders(self, node: Reachable, live: dict[str, Any], out: AbstractSet[str] = frozenset()) -> Orders:
        """One node's orders; `live` are the connected nodes by name (`Reachable`), `out` those that are not placed."""
        mine = self.assignment(node.node, node.incarnation)
        return Orders(
            generation=self.plan.to_generation,
            plan_id=self.plan.plan_id,
            slots=len(self._ring),
            step=self._step,
            mine=mine,
            source=self._source(mine, live),
            replicate_to=self.replicate_to(node, live, out),
            peers=tuple((p.address, p.peer_port) for p in _first(self._others(mine, live), FENCE_PEERS)),
            head=self._head,
            history=self._history,
        )

    def _source(self, mine: Assignment | None, live: dict[str, Any]) -> dict[str, Any] | None:
        source = self._sources.get(mine.slot) if mine is not None else None
        if source is None:
            return None
        holder = live.get(source.holder)
        where = {"host": None, "port": None} if holder is None else {"host": holder.address, "port": holder.vault_port}
        return {**source.model_dump(), **where}

    def _others(self, mine: Assignment | None, live: dict[str, Any]) -> Iterator[Any]:
        """Connected nodes of the generation, from the next slot on around the ring."""
        if mine is None:
            return
        start = self._place[mine.node]
        for distance in range(1, len(self._ring)):
            node = live.get(self._ring[(start + distance) % len(self._ring)].node)
            if node is not None:
                yield node

    def replicate_to(
        self, node: Reachable, live: dict[str, Any], out: AbstractSet[str] = frozenset()
    ) -> tuple[dict[str, Any], ...]:
        """Vaults that get copies of the node's slot: those of the next slots, and a standby's.

        Copies go to failure domains that have none yet, as far as there are others. Standbys share the slots out among
        themselves, so that a replacement finds its shard at home; nodes that are `out` will replace nobody, and get
        copies only where there is no standby. The same nodes give the same placement, whoever computes it.
        """
        mine = self.assignment(node.node, node.incarnation)
        if mine is None or not self._replicas:
            return ()
        near = _first(self._others(mine, live), 4 * self._replicas + FENCE_PEERS)
        ring = [peer for peer in near if peer.vault_port is not None]
        idle = [live[n] for n in sorted(live) if n not in self._place and live[n].vault_port is not None]
        idle.sort(key=lambda peer: peer.node in out)
        standbys = [peer for peer in idle if peer.node not in out] or idle
        chosen = _spread(node, ring, self._replicas)
        home = self._home(mine.slot, standbys)
        if home is not None:
            chosen.append(home)
        spare = [peer for peer in idle if peer not in chosen]
        chosen += spare[: max(0, self._replicas - len(chosen))]
        return tuple({"node": p.node, "host": p.address, "port": p.vault_port} for p in chosen)

    def _home(self, slot: int, standbys: list[Any]) -> Any | None:
        """The standby that holds a slot's state besides; None when there are more slots than standbys may hold."""
        if not standbys or slot // len(standbys) >= self._standby_slots:
            return None
        return standbys[slot % len(standbys)]


def _spread(node: Reachable, ring: list[Any], count: int) -> list[Any]:
    """So many of the ring, each from a failure domain that has no copy yet, as far as there is one."""
    chosen: list[Any] = []
    left = list(ring)
    while left and len(chosen) < count:
        best = min(left, key=lambda peer: sum(_same_domain(peer, other) for other in [node, *chosen]))
        chosen.append(best)
        left.remove(best)
    return chosen


def _same_domain(one: Reachable, other: Reachable) -> bool:
    return one.failure_domain is not None and one.failure_domain == other.failure_domain


def _first(nodes: Iterable[Any], count: int) -> list[Any]:
    found: list[Any] = []
    for node in nodes:
        if len(found) == count:
            break
        found.append(node)
    return found
