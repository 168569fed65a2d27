"""One torchrun agent: the product's node, and with it link, decider, election and fencing, simulated.

Only torchrun's own loop is written again here; what it does next, the product's `turns` say.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmr.integrations.torchrun.clock import Clock
from lmr.integrations.torchrun.committer import Committer, Fact
from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.errors import AdmissionRefused, MeetingFailed
from lmr.integrations.torchrun.identity import Identity
from lmr.integrations.torchrun.meeting import Host
from lmr.integrations.torchrun.node import Node
from lmr.integrations.torchrun.supervisor import FENCE_MS
from lmr.integrations.torchrun.surroundings import Surroundings
from lmr.integrations.torchrun.turns import parked, working
from lmr.integrations.torchrun.workers import Workers
from lmr.store import StoreError
from simulation.memory_log import Database, MemoryLog
from simulation.network import Listener, Network
from simulation.storage import SimulatedVault, Vaults
from simulation.training import Training
from simulation.world import Process, World, spawn

if TYPE_CHECKING:
    from collections.abc import Callable

MONITOR_S = 0.1
"""torchrun's `--monitor-interval`."""
PARKED_S = 0.04
"""How often a parked agent looks; the real one is woken up."""


@dataclass
class Place:
    """The rendezvous endpoint: whoever comes first serves it."""

    owner: Process | None = None
    host: Host | None = None

    def taken(self) -> bool:
        """Whether a live process serves it."""
        return self.owner is not None and self.owner.alive


class SimulatedMeeting:
    """One agent's view of the endpoint."""

    host_name = "endpoint"
    host_port = 29400

    def __init__(self, place: Place, process: Process) -> None:
        self._place = place
        self.serves = not place.taken()
        if self.serves:
            place.owner, place.host = process, None

    def announce(self, host: Host) -> None:
        self._place.host = host

    def find(self, until: float) -> Host:
        if self._place.host is None:
            raise MeetingFailed("nobody announced a host")
        return self._place.host

    def close(self) -> None:
        return


class SimulatedDriver:
    """The committer's thread: each attempt comes a moment after the fact it commits."""

    def __init__(self, process: Process, committer: Committer) -> None:
        self._process = process
        self._committer = committer
        self._turn = 0
        self._stopped = False

    def start(self) -> None:
        self._schedule(self._committer.idle_s())

    def submit(self, fact: Fact) -> None:
        self._committer.take(fact)
        if not self._committer.retry_s:
            self._schedule(self._process.world.chance.uniform(0.0005, 0.01))

    async def stop(self) -> None:
        if not self._stopped:
            self._committer.attempt()
        self._stopped = True

    def _schedule(self, delay_s: float) -> None:
        self._turn += 1
        turn = self._turn
        self._process.world.after(delay_s, lambda: self._go(turn), self._process)

    def _go(self, turn: int) -> None:
        if turn != self._turn or self._stopped:
            return
        if self._committer.attempt():
            self._schedule(self._committer.idle_s())
        else:
            self._stopped = True


@dataclass(eq=False)
class Agent:
    """One life of a node's agent."""

    node: str
    world: World
    network: Network
    training: Training
    config: BackendConfig
    database: Database
    vaults: Vaults
    place: Place
    trouble: Callable[[Process], Callable[[], None]]
    lives: itertools.count[int]
    nproc: int
    process: Process = field(init=False)
    runtime: Node = field(init=False)
    _told_to_leave: bool = False
    exit_code: int | None = None
    reason: str = ""
    lived: tuple[float, float] = (0.0, float("inf"))
    """From when until when its process ran."""

    def start(self) -> None:
        """The torchrun command."""
        chance = self.world.chance
        self.process = Process(
            self.world,
            self.network,
            self.node,
            self.config.local_addr or "",
            skew_ms=chance.randint(-3_000, 3_000),
            rate=chance.uniform(0.9995, 1.0005),
        )
        surroundings = Surroundings(
            clock=Clock(self.process.monotonic, self.process.wall_ms),
            identify=self._identify,
            open_log=lambda _where: MemoryLog(self.database, self.trouble(self.process)),
            listen=lambda: Listener(self.network.free_port()),
            drive=lambda committer: SimulatedDriver(self.process, committer),
            workers=self._workers,
            vault_link=self._vault,
            claim=lambda name: name,
        )
        self.runtime = Node(self.config, self.process.loop, surroundings=surroundings)
        self.lived = (self.world.now, float("inf"))
        self.world.note(self.node, "starts")
        spawn(self.process, self._main())

    def _identify(self, failure_domain: str | None) -> Identity:
        return Identity(self.node, f"life{next(self.lives):03d}", failure_domain, "same")

    def _vault(self, _name: str, _environ: dict[str, str], on_message: Any, _on_lost: Any) -> SimulatedVault:
        return SimulatedVault(self.process, self.training, self.vaults, on_message)

    def _workers(self, *arguments: Any) -> Workers:
        training = self.training

        class SimulatedWorkers(Workers):
            def _listen(self) -> Callable[[], None]:
                return lambda: None

            def _kill(self, pid: int) -> None:
                training.kill(pid)

        self.local = SimulatedWorkers(*arguments)
        return self.local

    # -- torchrun's own loop, as far as it concerns the product --------------------------------------------------------

    async def _main(self) -> None:
        try:
            meeting = None
            if self.config.embedded:
                while self.place.taken() and self.place.host is None:
                    await asyncio.sleep(0.1)
                meeting = SimulatedMeeting(self.place, self.process)
            await self.runtime.enter(self.nproc, meeting)
        except AdmissionRefused as refused:
            await self._end(refused.reason, refused.exit_code)
        except (MeetingFailed, StoreError) as error:
            await self._end(str(error), 1)
        else:
            await self._work()

    async def _work(self) -> None:
        generation = arrived = -1
        while True:
            if self._told_to_leave:
                await self._end("signal 15 while parked", 0)
                return
            now = self.runtime.current
            match parked(now, generation, arrived):
                case "end":
                    await self._end(now.end.reason, now.end.exit_code)
                    return
                case "arrive":
                    arrived = now.generation
                    self.runtime.arrive(arrived, {"host": self.process.host, "port": 1} if now.mine.slot == 0 else None)
                case "begin":
                    generation = now.generation
                    if await self._run(generation, now.orders.ranks):
                        return
                    self.runtime.stopped()
                case "wait":
                    await asyncio.sleep(PARKED_S)

    async def _run(self, generation: int, ranks: tuple[int, ...]) -> bool:
        """One generation's workers; true when the agent has ended."""
        await self.runtime.expect(ranks, generation)
        fence_ms = self.runtime.environment()[FENCE_MS]
        mine = [
            self.training.launch(self.process, self.local, generation, rank, int(fence_ms) if fence_ms else None)
            for rank in ranks
        ]
        while True:
            await asyncio.sleep(MONITOR_S)
            if all(not worker.held for worker in mine) and all(worker.code == 0 for worker in mine):
                await self._end("torchrun ended", 0)
                return True
            now = self.runtime.current
            match working(now, generation):
                case "end":
                    self._kill(mine)
                    await self._end(now.end.reason, now.end.exit_code)
                    return True
                case "stop":
                    self._kill(mine)
                    return False

    def _kill(self, workers: list[Any]) -> None:
        self.runtime.kill_workers([])
        for worker in workers:
            worker.kill()

    async def _end(self, reason: str, code: int) -> None:
        await self.runtime.leave(reason)
        self.exit_code, self.reason = code, reason
        self.world.note(self.node, f"exits with {code}: {reason}")
        self.die()

    def told_to_leave(self) -> None:
        """SIGTERM, seen while parked."""
        self._told_to_leave = True

    def die(self, *, power: bool = False) -> None:
        """The process is over, and its workers with it."""
        for worker in self.training.of(self.process):
            worker.kill()
        self.lived = (self.lived[0], self.world.now)
        self.process.kill(power=power)
