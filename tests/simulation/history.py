"""One seed, one history: a run with faults, then everything that must hold of it."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from lmr.engine.events import PlanCommitted, RunClosed
from lmr.engine.policy import RecoveryPolicy
from lmr.engine.record import Record
from lmr.integrations.torchrun import warm_request
from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.worker_policy import WorkerPolicy
from lmr.replay_tool.source import Log
from lmr.replay_tool.verbs.verify import verify
from lmr.store import ConnectionLost, LogUnavailable
from simulation.agent import Agent, Place
from simulation.memory_log import Database
from simulation.network import Network
from simulation.storage import Vaults
from simulation.training import Training
from simulation.world import Process, World

RUN = "run"
DATABASE_HOST = "10.0.0.250"
HEARTBEAT_MS = 2_000
END_WITHIN_S = 240.0
"""After the last fault: above the 120 s after which an embedded agent gives a frozen host up."""


@dataclass(frozen=True)
class Shape:
    """What a seed chose."""

    embedded: bool
    min_nodes: int
    max_nodes: int
    nproc: int
    steps: int
    faults: int
    checkpoints: bool

    @classmethod
    def by(cls, chance: random.Random) -> Shape:
        """Some shape."""
        min_nodes = chance.choice((1, 2, 2, 3, 3, 4))
        return cls(
            embedded=chance.random() < 0.5,
            min_nodes=min_nodes,
            max_nodes=min_nodes + chance.choice((1, 1, 2)),
            nproc=chance.choice((1, 2)),
            steps=chance.randint(40, 160),
            faults=chance.randint(0, 6),
            checkpoints=chance.random() < 0.7,
        )


class History:
    """A run under faults.

    Args:
        seed: says everything.
        shape: instead of what the seed would choose.
    """

    faults_end_s = 9.0
    """From when on the world is kind."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.world = World(seed)
        chance = self.world.chance
        self.shape = shape or Shape.by(chance)
        self.network = Network(self.world, slow_s=chance.choice((0.005, 0.05, 0.2)))
        world_size = self.shape.min_nodes * self.shape.nproc
        self.vaults = Vaults()
        self.training = Training(
            self.world,
            self.network.reaches,
            world_size,
            self.shape.steps,
            self.vaults if self.shape.checkpoints else None,
        )
        self.database = Database(self._database_clock)
        self.place = Place()
        self.agents: list[Agent] = []
        self._lives = itertools.count(1)
        self._database_up = True
        self._calm = False
        self._lossy = chance.choice((0.0, 0.0, 0.01))

    # -- the cast ------------------------------------------------------------------------------------------------------

    def _database_clock(self) -> int:
        return self.world.wall_ms() + 1_234

    def _config(self, node: str) -> BackendConfig:
        policy = RecoveryPolicy(standby_wait_s=20, start_s=30, restore_s=60, publish_ms=500)
        return BackendConfig(
            run_id=RUN,
            endpoint="endpoint",
            store_type="tcp",
            is_host=None,
            min_nodes=self.shape.min_nodes,
            max_nodes=self.shape.max_nodes,
            local_addr=f"10.0.0.{node.removeprefix('node-')}",
            event_log=None if self.shape.embedded else f"postgresql+psycopg://{DATABASE_HOST}/log",
            heartbeat_timeout_ms=HEARTBEAT_MS,
            join_timeout_ms=60_000,
            restart_context=Path("/tmp/lmr-simulation/context.json"),
            worker_policy=WorkerPolicy(
                enable_checkpoint=self.shape.checkpoints, enable_detection=False, recovery=policy
            ),
            secret=b"simulated",
            failure_domain=None,
        )

    def _trouble(self, process: Process) -> Callable[[], None]:
        """What goes wrong on a process's way to its database."""
        fresh = True

        def look() -> None:
            nonlocal fresh
            if self.shape.embedded:
                away = not self._database_up
            else:
                away = not self._database_up or not self.network.reaches(process.host, DATABASE_HOST)
            if away:
                raise LogUnavailable("the database is away")
            if not self._calm and self._lossy and self.world.chance.random() < self._lossy:
                raise ConnectionLost("the answer was lost")

        return look

    def start(self, node: str) -> Agent:
        """Start a life of a node."""
        self.network.power_on(f"10.0.0.{node.removeprefix('node-')}")
        agent = Agent(
            node,
            self.world,
            self.network,
            self.training,
            self._config(node),
            self.database,
            self.vaults,
            self.place,
            self._trouble,
            self._lives,
            self.shape.nproc,
        )
        self.agents.append(agent)
        agent.start()
        return agent

    @property
    def records(self) -> list[Record]:
        """The log."""
        return self.database.run(RUN).records

    @property
    def closed(self) -> str | None:
        """The run's outcome."""
        last = next((r.event.data for r in reversed(self.records) if isinstance(r.event.data, RunClosed)), None)
        return last.outcome if last is not None else None

    def living(self) -> list[Agent]:
        """Agents whose process runs."""
        return [agent for agent in self.agents if agent.process.alive]

    # -- faults --------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        chance, at = self.world.chance, self.world.at
        nodes = [f"node-{number}" for number in range(1, self.shape.max_nodes + 1)]
        for node in nodes:
            at(0.0 if node == "node-1" else chance.uniform(0.01, 0.5), lambda node=node: self.start(node))
        faults = [self._crash_worker, self._kill_agent, self._power_off, self._freeze, self._cut_node, self._divide]
        faults += [self._one_way, self._reset, self._log_away, self._relaunch, self._leave]
        for _ in range(self.shape.faults):
            at(chance.uniform(0.3, self.faults_end_s - 1), chance.choice(faults))
        at(self.faults_end_s, self._all_well)

    def _someone(self) -> Agent | None:
        living = self.living()
        return self.world.chance.choice(living) if living else None

    def _crash_worker(self) -> None:
        agent = self._someone()
        if agent is not None and self.training.crash(agent.process):
            self.world.note(agent.node, "a worker crashes")

    def _kill_agent(self) -> None:
        agent = self._someone()
        if agent is not None:
            self.world.note(agent.node, "agent killed")
            agent.die()

    def _power_off(self) -> None:
        agent = self._someone()
        if agent is not None:
            self.world.note(agent.node, "machine gone")
            agent.die(power=True)

    def _leave(self) -> None:
        agent = self._someone()
        if agent is not None and agent.runtime.current.mine is None:
            self.world.note(agent.node, "standby told to leave")
            agent.told_to_leave()

    def _freeze(self) -> None:
        agent = self._someone()
        if agent is None:
            return
        length = self.world.chance.choice((0.2, 0.8, 2.5, 6.0, 20.0))
        machine = self.world.chance.random() < 0.5
        self.world.note(agent.node, f"{'machine' if machine else 'agent'} frozen for {length} s")
        agent.process.pause(machine=machine)

        def thaw() -> None:
            self.world.note(agent.node, "goes on")
            agent.process.resume()

        self.world.after(length, thaw)

    def _hosts(self) -> list[str]:
        hosts = sorted({agent.process.host for agent in self.agents})
        return hosts if self.shape.embedded else [*hosts, DATABASE_HOST]

    def _split(self, side: set[str], *, both: bool) -> None:
        self.cut(side, self.world.chance.choice((0.3, 1.2, 1.8, 3.0, 7.0)), both=both)

    def cut(self, side: set[str], length: float, *, both: bool = True) -> None:
        """Some machines cannot reach the others for a while, or only cannot send to them."""
        for one, other in itertools.permutations(self._hosts(), 2):
            if one in side and other not in side:
                self.network.cut(one, other)
                if both:
                    self.network.cut(other, one)
        self.world.note("network", f"{'+'.join(sorted(side))} {'cut off' if both else 'cannot send'} for {length} s")

        def heal() -> None:
            self.world.note("network", "heals")
            self.network.heal()

        self.world.after(length, heal)

    def _cut_node(self) -> None:
        agent = self._someone()
        if agent is not None:
            self._split({agent.process.host}, both=True)

    def _one_way(self) -> None:
        agent = self._someone()
        if agent is not None:
            self._split({agent.process.host}, both=False)

    def _divide(self) -> None:
        hosts = self._hosts()
        if len(hosts) > 1:
            self._split(set(self.world.chance.sample(hosts, self.world.chance.randint(1, len(hosts) - 1))), both=True)

    def _reset(self) -> None:
        self.network.reset_one()

    def _log_away(self) -> None:
        length = self.world.chance.choice((0.2, 1.5, 5.0))
        self.world.note("log", f"away for {length} s")
        self._database_up = False

        def back() -> None:
            self.world.note("log", "is back")
            self._database_up = True

        self.world.after(length, back)

    def _relaunch(self) -> None:
        gone = sorted({a.node for a in self.agents} - {a.node for a in self.living()})
        if gone:
            self.start(self.world.chance.choice(gone))

    def _all_well(self) -> None:
        """The world is kind from here on; machines that are missing are started again, as a scheduler does."""
        self._calm = True
        self.network.heal()
        self._database_up = True
        for agent in self.living():
            if agent.process.paused:
                agent.process.resume()
        if self.shape.embedded and not self.place.taken():
            return  # the host is gone: the others end, and that is the end of it
        self._restaff()

    def _restaff(self) -> None:
        if self.closed is None and not (self.shape.embedded and not self.place.taken()):
            there = {agent.node for agent in self.living()}
            for number in range(1, self.shape.max_nodes + 1):
                if f"node-{number}" not in there:
                    self.start(f"node-{number}")
            self.world.after(5.0, self._restaff)

    # -- the run and its judgement -------------------------------------------------------------------------------------

    def play(self) -> list[str]:
        """Let it happen. Returns what must not have been."""
        self._schedule()
        self.world.run(self.faults_end_s + END_WITHIN_S, self._over)
        for record in self.records:
            self.world.history.append(f"{'':9} {record.seq:>4} {record.event.type} {record.event.to_json()['data']}")
        for agent in self.agents:
            agent.process.loop.bury()
        self.world.bury()
        return self._judge()

    def _over(self) -> bool:
        return (self._calm or self.closed is not None) and not self.living()

    def _judge(self) -> list[str]:
        wrong = [*self.world.uncaught(), *self.training.breaches]
        wrong += [f"{agent.node} does not end" for agent in self.living()]
        records = self.records
        if [r.seq for r in records] != list(range(1, len(records) + 1)):
            wrong.append("the log is not dense")
        if len({r.event_id for r in records}) != len(records):
            wrong.append("a fact is there twice")
        wrong += self._facts_lost() + self._restored() + self._plans() + self._outcomes()
        found = verify(Log("memory", "database", RUN, _read=lambda after: iter(records[after:])))
        return wrong + [f"verify: {fault}" for fault in found.faults]

    def _facts_lost(self) -> list[str]:
        counters: dict[str, list[int]] = {}
        for record in self.records:
            if record.event_id.startswith("node-"):
                life, _, counter = record.event_id.rpartition("/")
                counters.setdefault(life, []).append(int(counter))
        return [
            f"facts of {life} are {seen}" for life, seen in counters.items() if seen != list(range(1, len(seen) + 1))
        ]

    def _plans(self) -> list[str]:
        plans = [r.event.to_json()["data"]["plan"] for r in self.records if r.event.type == "plan_committed"]
        moving = [plan["to_generation"] for plan in plans if plan["action"] in ("start", "restart", "replace")]
        wrong = [] if moving == sorted(set(moving)) else [f"generations {moving}"]
        named = {
            (plan["to_generation"], a["first_rank"] + k): a["node"]
            for plan in plans
            for a in plan["assignments"]
            if plan["action"] in ("start", "restart", "replace")
            for k in range(a["local_world_size"])
        }
        wrong += [
            f"{worker.process.name} ran rank {worker.rank} of {worker.generation} unasked"
            for worker in self.training.all
            if named.get((worker.generation, worker.rank)) != worker.process.name
        ]
        started = [(w.process, w.generation, w.rank) for w in self.training.all]
        if len(set(started)) != len(started):
            wrong.append("a worker was started twice")
        return wrong

    def _restored(self) -> list[str]:
        """Every rank that loaded, loaded the plan's step, and only when all nodes had their copies."""
        planned = {
            r.event.data.plan.to_generation: r.event.data.plan
            for r in self.records
            if isinstance(r.event.data, PlanCommitted) and r.event.data.plan.action in ("start", "restart", "replace")
        }
        wrong = []
        for generation, loads in self.training.loads.items():
            plan = planned[generation]
            step = plan.checkpoint.step if plan.checkpoint is not None else 0
            if set(loads.values()) != {step}:
                wrong.append(f"generation {generation} is to load step {step}, but ranks loaded {loads}")
        return wrong

    def _outcomes(self) -> list[str]:
        """Who ended by the run's end has its exit code."""
        wrong = []
        for agent in self.agents:
            if agent.exit_code is None or ("run was" not in agent.reason and "run succeeded" not in agent.reason):
                continue
            active = agent.runtime.current.mine is not None
            expected = 0 if self.closed == "succeeded" or not active else 1
            if agent.exit_code != expected:
                wrong.append(f"{agent.node} ended with {agent.exit_code}: {agent.reason}")
        for agent in self.agents:
            others = [a for a in self.agents if a.node == agent.node and a is not agent]
            met = any(a.lived[1] > agent.lived[0] and a.lived[0] < agent.lived[1] for a in others)
            if "in use by a live agent" in agent.reason and not met:
                wrong.append(f"{agent.node} was taken for another life of itself")
        if self.closed is None and not self.shape.embedded:
            wrong.append("the run never ended")
        return wrong


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No log lines, no warm processes meanwhile: thousands of histories run in one process."""
    before = os.environ.get(warm_request.SWITCH)
    os.environ[warm_request.SWITCH] = "0"
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        with warnings.catch_warnings():
            # Coroutines of killed processes are never finished, as in the world.
            warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
            yield
    finally:
        structlog.reset_defaults()
        if before is None:
            del os.environ[warm_request.SWITCH]
        else:
            os.environ[warm_request.SWITCH] = before


def play(seed: int) -> tuple[History, list[str]]:
    """Play one seed. Returns the history and what was wrong with it."""
    history = History(seed)
    return history, history.play()
