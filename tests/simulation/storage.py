"""The nodes' vaults as a model: captures, replicas, restores and what they say, without any bytes.

Pins, retained steps, barriers and sources are the product's own; a vault here keeps names of copies and obeys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulation.world import Process

if TYPE_CHECKING:
    from simulation.training import Training

Copy = tuple[int, int, int]
"""Generation, step, slot."""


@dataclass
class Vaults:
    """Every vault of the world, by the address of its machine."""

    by_host: dict[str, SimulatedVault] = field(default_factory=dict)


class SimulatedVault:
    """Stands for `VaultLink` and the process behind it; it dies with its agent."""

    def __init__(
        self,
        process: Process,
        training: Training,
        vaults: Vaults,
        on_message: Callable[[dict[str, Any]], None],
    ) -> None:
        self.socket_name = "vault"
        self.port: int | None = 1
        self.up = True
        self.copies: dict[Copy, bool] = {}
        """True: captured here; false: a replica."""
        self._process = process
        self._training = training
        self._vaults = vaults
        self._on_message = on_message
        self._node = process.name
        self._generation, self._slot = -1, None
        self._ranks: tuple[int, ...] = ()
        self._restored = 0
        self._targets: list[dict[str, Any]] = []
        self._pins: set[int] = set()
        self._retained: set[int] = set()
        vaults.by_host[process.host] = self

    async def start(self) -> bool:
        self._say("held", copies=[])
        return True

    def close(self, *, end_vault: bool, forget: bool) -> None:
        self.up = False

    def send(self, kind: str, **values: Any) -> None:
        match kind:
            case "generation":
                self._enter(values)
            case "load":
                self._training.may_load(values["generation"], self._ranks, self._restored)
            case "pin":
                self._pins.add(values["step"])
            case "retain":
                self._retain(set(values["steps"]))
            case "replicate_to":
                self._targets = values["replicate_to"]
            case "flush":
                self._later(0.02, lambda: self._on_message({"kind": "flushed"}))
            case "save":
                self._say("saved", disk=[], memory=[])

    # -- what the world does to it -------------------------------------------------------------------------------------

    def captured(self, generation: int, step: int) -> None:
        """Every rank of the slot has captured a step."""
        if generation != self._generation or self._slot is None:
            return
        self._say("progress", step=step)
        if step in self._pins:
            self._pins.discard(step)
            copy = (generation, step, self._slot)
            self.copies[copy] = True
            self._fact("checkpoint_captured", copy, node=self._node, bytes=1)
            for target in self._targets:
                self._later(0.2, lambda target=target: self._replicate(copy, target["host"]))

    # -- its own work --------------------------------------------------------------------------------------------------

    def _later(self, most_s: float, call: Callable[[], object]) -> None:
        world = self._process.world
        world.after(world.chance.uniform(0, most_s), lambda: self.up and call(), self._process)

    def _say(self, kind: str, **values: Any) -> None:
        self._later(0.005, lambda: self._on_message({"kind": kind, **values}))

    def _fact(self, kind: str, copy: Copy, **values: Any) -> None:
        generation, step, slot = copy
        data = {"generation": generation, "step": step, "slot": slot, **values}
        if kind != "checkpoint_dropped":
            data["digest"] = f"{step:032x}{slot:032x}"
        self._say("fact", type=kind, data=data)

    def _enter(self, told: dict[str, Any]) -> None:
        self._generation, self._slot = told["generation"], told["slot"]
        self._ranks = tuple(told["ranks"])
        self._restored = told["checkpoint"]["step"]
        self._targets = told["replicate_to"]
        self._pins.clear()
        self._retained = {self._restored}
        for copy in [c for c in self.copies if c[0] < self._generation and c[1] > self._restored]:
            self._drop(copy, "stale_generation")
        if self._slot is None or self._restored == 0:
            return
        generation, sources = self._generation, told["checkpoint"]["sources"]
        self._later(0.2, lambda: self._restore(generation, sources))

    def _find(self, step: int, slot: int) -> Copy | None:
        return max((c for c in self.copies if c[1:] == (step, slot)), default=None)

    def _restore(self, generation: int, sources: list[dict[str, Any]]) -> None:
        """Make sure the slot's copy is here: from this vault, or from the holder the plan names."""
        if generation != self._generation or self._slot is None:
            return
        source = sources[0] if sources else {"holder": self._node, "tier": "memory", "host": None}
        why = None
        if self._find(self._restored, self._slot) is None:
            holder = self._reach(source["host"])
            found = holder._find(self._restored, self._slot) if holder is not None else None
            if found is not None:
                self.copies[found] = True
            else:
                why = "timeout" if holder is None else "missing"
        if why is None:
            self._say("restorable", generation=generation)
        else:
            told = {"step": self._restored, "slot": self._slot, "holder": source["holder"], "tier": source["tier"]}
            self._say("restore_failed", generation=generation, why=why, **told)

    def _reach(self, host: str | None) -> SimulatedVault | None:
        other = self._vaults.by_host.get(host or "")
        network, mine = self._process.network, self._process.host
        if other is None or not other.up or not other._process.alive or other._process.paused:
            return None
        reached = host == mine or (network.reaches(mine, host or "") and network.reaches(host or "", mine))
        return other if reached else None

    def _replicate(self, copy: Copy, host: str) -> None:
        other = self._reach(host)
        if other is not None and copy in self.copies:
            other._take(copy)

    def _take(self, copy: Copy) -> None:
        stale = copy[0] < self._generation and copy[1] > self._restored
        if not stale and copy not in self.copies:
            self.copies[copy] = False
            self._fact("checkpoint_replicated", copy, holder=self._node)

    def _retain(self, steps: set[int]) -> None:
        self._retained = steps
        for copy in [c for c in self.copies if c[1] < max(steps, default=0) and c[1] not in steps]:
            self._drop(copy, "superseded")

    def _drop(self, copy: Copy, why: str) -> None:
        own = self.copies.pop(copy)
        self._fact("checkpoint_dropped", copy, holder=self._node, tier="memory" if own else "replica", why=why)
