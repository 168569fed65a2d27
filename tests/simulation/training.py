"""The workers of a run as a model: they start, step together, fail together, finish, and die with their agent.

What they say goes through the product's own `Workers`; only sockets and processes are made up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lmr.integrations.torchrun.workers import Workers
from simulation.storage import Vaults
from simulation.world import Process, World

STEP_S = 0.05
WAKING_S = 1.0
"""A machine that was frozen runs old workers for a moment before its agent has read what happened."""


class Voice:
    """A supervisor's or trainer's connection to its agent."""

    def __init__(self, about: dict[str, Any], heard: Callable[[str, dict[str, Any]], None]) -> None:
        self.about = about
        self._heard = heard

    def send(self, kind: str, **values: Any) -> bool:
        self._heard(kind, values)
        return True

    def close(self) -> None:
        return


@dataclass(eq=False)
class Worker:
    """One rank's process and its supervisor."""

    pid: int
    process: Process
    workers: Workers
    generation: int
    rank: int
    fence_ms: int | None
    training: bool = True
    """The script runs."""
    held: bool = True
    """The supervisor runs."""
    code: int | None = None
    _heard: int = 0
    supervisor: Voice = field(init=False)
    trainer: Voice = field(init=False)

    def __post_init__(self) -> None:
        about = {"pid": self.pid, "rank": self.rank, "generation": self.generation}
        self.supervisor = Voice({**about, "role": "supervisor"}, self._told)
        self.trainer = Voice({**about, "role": "trainer"}, self._told)
        now = self.process.monotonic()
        self._watch(now + self.fence_ms / 1000 if self.fence_ms is not None else None)

    @property
    def running(self) -> bool:
        """It can touch the world now."""
        return self.training and self.process.alive and not self.process.still

    def _told(self, kind: str, values: dict[str, Any]) -> None:
        if kind == "exit":
            self.held, self.code = False, values["code"]
        elif kind == "here":
            self._watch(values["until_s"])

    def _watch(self, until_s: float | None) -> None:
        """End the trainer then, by its machine's clock, unless the agent is heard before."""
        self._heard += 1
        if until_s is not None:
            self.process.world.at(self.process.true_time(until_s), partial(self._fence, self._heard))

    def _fence(self, heard: int) -> None:
        if heard != self._heard or not self.process.alive:
            return
        if self.process.still:  # and once its machine goes on
            self.process.world.after(WAKING_S / 10, partial(self._fence, heard))
        elif self.running:
            self.ended(None, 9, {"kind": "signal", "type": "SIGKILL", "fingerprint": None}, 0)

    def say(self, voice: Voice, kind: str, **values: Any) -> None:
        """Something reaches the agent."""
        message = {"kind": kind, **values}
        self.process.run(lambda: self.held and self.workers._message(voice, message))

    def ended(self, exit_code: int | None, signal: int | None, error: dict[str, Any] | None, step: int) -> None:
        """The script is over and its supervisor says how."""
        if not self.training:
            return
        self.training = False
        said = {"rank": self.rank, "exit_code": exit_code, "signal": signal, "error": error, "step": step}
        self.say(self.supervisor, "exited", **said)

    def kill(self) -> None:
        """SIGKILL of its process group."""
        self.training = self.held = False


class Training:
    """All workers of the run.

    Args:
        world: time and chance.
        reaches: whether two machines can talk.
        world_size: ranks of a generation.
        steps: optimizer steps to the end.
        vaults: keep what is captured, and say when ranks may load; None: every generation starts anew.
    """

    def __init__(
        self, world: World, reaches: Callable[[str, str], bool], world_size: int, steps: int, vaults: Vaults | None
    ) -> None:
        self._world = world
        self._reaches = reaches
        self._world_size = world_size
        self._steps = steps
        self._pids = itertools.count(1)
        self._groups: dict[int, dict[int, Worker]] = {}
        self._at: dict[int, int] = {}
        self.all: list[Worker] = []
        self.breaches: list[str] = []
        self.loads: dict[int, dict[int, int]] = {}
        """Step each rank loaded, by generation and rank."""
        self._vaults = vaults

    def launch(self, process: Process, workers: Workers, generation: int, rank: int, fence_ms: int | None) -> Worker:
        """Start one rank."""
        worker = Worker(next(self._pids), process, workers, generation, rank, fence_ms)
        self.all.append(worker)
        self._check_one_writer(worker)
        self._world.after(self._world.chance.uniform(0.02, 0.4), lambda: self._up(worker), process)
        return worker

    def _check_one_writer(self, new: Worker) -> None:
        for old in self.all:
            awake = self._world.now - old.process.woken > WAKING_S
            if old is not new and old.rank == new.rank and old.running and awake:
                self.breaches.append(
                    f"rank {new.rank} has two writers: {old.process.name} in generation {old.generation}, "
                    f"{new.process.name} in generation {new.generation}"
                )

    def _up(self, worker: Worker) -> None:
        if not worker.training:
            return
        worker.say(worker.supervisor, "hello", **worker.supervisor.about)
        worker.say(worker.trainer, "hello", **worker.trainer.about)
        group = self._groups.setdefault(worker.generation, {})
        group[worker.rank] = worker
        self._load(worker)

    def may_load(self, generation: int, ranks: tuple[int, ...], step: int) -> None:
        """A node's vault hands the state of a step out."""
        loads = self.loads.setdefault(generation, {})
        for rank in ranks:
            if rank not in loads:
                loads[rank] = step
                worker = self._groups.get(generation, {}).get(rank)
                if worker is not None:
                    self._load(worker)

    def _load(self, worker: Worker) -> None:
        """The rank has its state, if it may; when all have, they train."""
        generation, group = worker.generation, self._groups[worker.generation]
        loads = self.loads.get(generation, {})
        if self._vaults is not None:
            if worker.rank not in loads:
                return
            step = loads[worker.rank]
            worker.say(worker.trainer, "restored", rank=worker.rank, step=step, tier="memory")
        ready = len(group) == self._world_size and (self._vaults is None or len(loads) == self._world_size)
        if ready and generation not in self._at:
            self._at[generation] = max(loads.values(), default=0)
            self._world.after(STEP_S, lambda: self._step(generation))

    def _step(self, generation: int) -> None:
        group = self._groups[generation]
        members = list(group.values())
        if any(not member.process.alive or not member.held for member in members):
            for member in members:
                member.training = member.training and member.process.alive
        if all(member.running for member in members) and self._connected(members):
            self._at[generation] += 1
            step = self._at[generation]
            if step == self._steps:
                for member in members:
                    member.ended(0, None, None, step)
                return
            group[0].say(group[0].trainer, "stepped", rank=0, step=step)
            for process in dict.fromkeys(member.process for member in members):
                self._captured(process, generation, step)
        elif any(not member.training for member in members):
            self._break(members, generation)
            return
        self._world.after(STEP_S, lambda: self._step(generation))

    def _captured(self, process: Process, generation: int, step: int) -> None:
        vault = self._vaults.by_host.get(process.host) if self._vaults is not None else None
        if vault is not None:
            process.run(lambda: vault.captured(generation, step))

    def _connected(self, members: list[Worker]) -> bool:
        hosts = sorted({member.process.host for member in members})
        return all(self._reaches(a, b) and self._reaches(b, a) for a, b in itertools.combinations(hosts, 2))

    def _break(self, members: list[Worker], generation: int) -> None:
        """A peer is gone: the others fail in their collective a moment later, or hang there."""
        error = {"kind": "collective", "type": "RuntimeError", "fingerprint": "c" * 16}
        step = self._at[generation]

        def fail(member: Worker) -> None:
            member.process.run(lambda: member.ended(1, None, error, step))

        for member in members:
            if member.training and self._world.chance.random() < 0.9:
                self._world.after(self._world.chance.uniform(0.01, 0.3), partial(fail, member))

    def crash(self, process: Process) -> bool:
        """One trainer of a node dies. False when it has none."""
        mine = [worker for worker in self.all if worker.process is process and worker.running]
        if not mine:
            return False
        worker = self._world.chance.choice(mine)
        step = self._at.get(worker.generation, 0)
        if self._world.chance.random() < 0.5:
            worker.ended(None, 9, {"kind": "signal", "type": "SIGKILL", "fingerprint": "k" * 16}, step)
        else:
            fingerprint = self._world.chance.choice(["a" * 16, "b" * 16])
            worker.ended(1, None, {"kind": "exception", "type": "KeyError", "fingerprint": fingerprint}, step)
        return True

    def of(self, process: Process) -> list[Worker]:
        """Workers whose supervisor lives on a node."""
        return [worker for worker in self.all if worker.process is process and worker.held]

    def kill(self, pid: int) -> None:
        """SIGKILL by pid."""
        for worker in self.all:
            if worker.pid == pid:
                worker.kill()
