"""How many agents one decider carries: simulated agents speak the real link to a real decider with a real log.

The decider runs in a process of its own, with the embedded SQLite log. The agents are connections of one other
process: they join, send heartbeats, captures and replicas every ten seconds and, when one of them vanishes, the echoes
of all the others, as a job of that size would. Machines, vaults and training are not there; the link, the log and the
engine are.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lmr.engine.events import (
    CheckpointCaptured,
    CheckpointReplicated,
    Data,
    Event,
    ExitError,
    GenerationStarted,
    WorkerExited,
)
from lmr.integrations.torchrun.config import HEARTBEAT_TIMEOUT_MS, BackendConfig
from lmr.integrations.torchrun.worker_policy import WorkerPolicy
from lmr.integrations.wire import AsyncChannel

SECRET = b"simulated agents of a benchmark!"
RUN = "link-bench"
STANDBYS = 4
CAPTURE_EVERY_S = 10.0
SIZES = (250, 500, 1_000, 2_000)


def run(*, quick: bool) -> list[dict[str, object]]:
    """One row for each number of agents.

    Returns:
        agents, join_s (all admitted, the first plan pushed), events_per_s and decider_cpu (cores) in the steady state,
        loss_to_plan_ms (p50 and p99 over all agents and losses, from the vanishing of a node to the plan's arrival; 300
        ms of it are the link's grace), wrongly_lost (nodes lost though they were there).
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return [
        _measure(agents, steady_s=5.0 if quick else 20.0, losses=1 if quick else 3)
        for agents in SIZES[: 2 if quick else None]
    ]


def _measure(agents: int, steady_s: float, losses: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="lmr-link-bench-") as folder:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        decider = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, folder, agents), daemon=True, name="decider"
        )
        decider.start()
        try:
            port = ours.recv()
            return asyncio.run(_job(port, agents, steady_s, losses, ours))
        finally:
            with contextlib.suppress(OSError):
                ours.send("stop")
            decider.join(10)
            decider.kill()


def _config(folder: str, agents: int) -> BackendConfig:
    return BackendConfig(
        run_id=RUN,
        endpoint="localhost:0",
        store_type="tcp",
        is_host=True,
        min_nodes=agents,
        max_nodes=agents + STANDBYS,
        local_addr="127.0.0.1",
        event_log=str(Path(folder) / "events.db"),
        heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
        join_timeout_ms=60_000,
        restart_context=None,
        worker_policy=WorkerPolicy(),
        secret=SECRET,
        failure_domain=None,
    )


def _serve(pipe: Connection, folder: str, agents: int) -> None:
    """The decider's process: answers `cpu` with its CPU seconds and the number of events, ends at `stop`."""
    import logging

    import structlog

    from lmr.integrations.torchrun.decider import LEASE_MS, Decider
    from lmr.integrations.torchrun.election import listen
    from lmr.store import open_log

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def serve() -> None:
        config = _config(folder, agents)
        event_log = open_log(config.log_location)
        lease = event_log.acquire_lease(RUN, holder="bench/0", address="127.0.0.1:0", ttl_ms=LEASE_MS)
        assert lease is not None
        decider = Decider(
            config, 1, event_log, lease.epoch, "bench/0", SECRET, lease_ms=LEASE_MS, on_fenced=lambda _why: None
        )
        listener = listen()
        await decider.start(listener, reopen=True)
        pipe.send(listener.getsockname()[1])
        while (asked := await asyncio.to_thread(pipe.recv)) != "stop":
            lost = sum(r.event.type == "node_lost" for r in event_log.read(RUN)) if asked == "lost" else None
            pipe.send((time.process_time(), event_log.head(RUN).seq, lost))
        await decider.stop(None)
        event_log.close()

    asyncio.run(serve())


@dataclass
class SimulatedAgent:
    """One connection that behaves like a node's link."""

    name: str
    port: int
    counter: int = 0
    generation: int = -1
    slot: int | None = None
    channel: AsyncChannel | None = None
    welcome: asyncio.Event = field(default_factory=asyncio.Event)
    planned: asyncio.Event = field(default_factory=asyncio.Event)
    planned_at: float = 0.0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def join(self, agents: int) -> None:
        """Connect and be admitted."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.channel = await AsyncChannel.open(reader, writer, SECRET, "client")
        self.channel.send(
            {
                "kind": "hello",
                "run": RUN,
                "node": self.name,
                "incarnation": "1",
                "address": "127.0.0.1",
                "failure_domain": None,
                "fingerprint": "f",
                "min_nodes": agents,
                "max_nodes": agents + STANDBYS,
                "local_world_size": 1,
                "policy": WorkerPolicy().model_dump(mode="json"),
                "vault_port": 1,
                "peer_port": 1,
            }
        )
        self.tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._beat())]
        await self.welcome.wait()

    async def _listen(self) -> None:
        assert self.channel is not None
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = await self.channel.recv()
                if message["kind"] == "welcome":
                    self.welcome.set()
                elif message["kind"] == "plan":
                    self.planned_at = time.monotonic()
                    self.generation = message["generation"]
                    mine = message["mine"]
                    self.slot = mine["slot"] if mine is not None else None
                    self.planned.set()
                elif message["kind"] == "probe":
                    self.channel.send({"kind": "alive", "generation": message["generation"]})

    async def _beat(self) -> None:
        assert self.channel is not None
        while True:
            await asyncio.sleep(HEARTBEAT_TIMEOUT_MS / 1000 / 6)
            self.channel.send({"kind": "heartbeat"})

    def publish(self, data: Data) -> None:
        """Send one fact."""
        assert self.channel is not None
        self.counter += 1
        event = Event.of(data, at_ms=time.time_ns() // 1_000_000, source=self.name)
        self.channel.send({"kind": "facts", "facts": [[f"{self.name}/1/{self.counter}", event.to_json()]]})

    def vanish(self) -> None:
        """The machine is gone."""
        for task in self.tasks:
            task.cancel()
        if self.channel is not None:
            self.channel.writer.transport.abort()


async def _job(port: int, agents: int, steady_s: float, losses: int, pipe: Connection) -> dict[str, object]:
    fleet = [SimulatedAgent(f"n{index:05d}", port) for index in range(agents + STANDBYS)]
    started = time.monotonic()
    for first in range(0, len(fleet), 50):
        await asyncio.gather(*(agent.join(agents) for agent in fleet[first : first + 50]))
    await asyncio.gather(*(agent.planned.wait() for agent in fleet))
    join_s = time.monotonic() - started
    _start_generation(fleet)
    cpu0, seq0, _ = await _asked(pipe, "cpu")
    began = time.monotonic()
    await _steady(fleet, steady_s)
    cpu1, seq1, _ = await _asked(pipe, "cpu")
    wall = time.monotonic() - began
    delays: list[float] = []
    for _ in range(losses):
        delays += await _lose_one(fleet)
    _, _, lost = await _asked(pipe, "lost")
    for agent in fleet:
        agent.vanish()
    delays.sort()
    return {
        "agents": agents,
        "join_s": round(join_s, 2),
        "events_per_s": round((seq1 - seq0) / wall),
        "decider_cpu": round((cpu1 - cpu0) / wall, 2),
        "loss_to_plan_ms_p50": round(statistics.median(delays) * 1000),
        "loss_to_plan_ms_p99": round(delays[int(len(delays) * 0.99)] * 1000),
        "wrongly_lost": lost - losses,
    }


async def _asked(pipe: Connection, what: str) -> Any:
    pipe.send(what)
    return await asyncio.to_thread(pipe.recv)


def _start_generation(fleet: list[SimulatedAgent]) -> None:
    for agent in fleet:
        if agent.slot is not None:
            agent.publish(GenerationStarted(generation=agent.generation, node=agent.name))


async def _steady(fleet: list[SimulatedAgent], seconds: float) -> None:
    """Captures and replicas of every node each ten seconds, spread over them."""
    active = [agent for agent in fleet if agent.slot is not None]
    until, step = time.monotonic() + seconds, 10
    while time.monotonic() < until:
        round_began = time.monotonic()
        for index, agent in enumerate(active):
            holder = active[(index + 1) % len(active)]
            where: dict[str, Any] = {
                "generation": agent.generation,
                "step": step,
                "slot": agent.slot,
                "digest": f"d{step}-{agent.slot}",
            }
            agent.publish(CheckpointCaptured(node=agent.name, bytes=1 << 30, **where))
            holder.publish(CheckpointReplicated(holder=holder.name, **where))
            due = round_began + CAPTURE_EVERY_S * (index + 1) / len(active)
            if due - time.monotonic() > 0.002:
                await asyncio.sleep(due - time.monotonic())
            if time.monotonic() > until:
                return
        step += 10


async def _lose_one(fleet: list[SimulatedAgent]) -> list[float]:
    """One node vanishes, all others fail in their collectives; seconds until each has the plan."""
    victim = next(agent for agent in fleet if agent.slot is not None)
    fleet.remove(victim)
    for agent in fleet:
        agent.planned.clear()
    generation = victim.generation
    gone = time.monotonic()
    victim.vanish()
    echo = ExitError(kind="collective", type="RuntimeError", fingerprint="fp")
    for agent in fleet:
        if agent.slot is not None:
            agent.publish(
                WorkerExited(generation=generation, node=agent.name, rank=agent.slot, exit_code=1, step=20, error=echo)
            )
    await asyncio.gather(*(agent.planned.wait() for agent in fleet))
    delays = [agent.planned_at - gone for agent in fleet]
    _start_generation(fleet)
    return delays
