"""One drill for every framework and mode: an unmodified script, undisturbed and disturbed, compared bit by bit."""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import matrix

from lmr.integrations.operate.cluster import Cluster, ClusterFailed
from lmr.integrations.operate.final_state import differences, last_losses, newest_step
from lmr.replay_tool.main import main as lmr_replay

FLIP = str(Path(__file__).parent / "shims" / "flip_a_bit.py")
EQUAL = "bitwise equal"
MAJORITY, CONTINUITY = "by majority", "by continuity"
POLICY = """schema_version = 1
[recovery]
publish_ms = 100
[replay.hang]
floor_ms = 6000
[replay.continuity]
cost_permille = 1000
[checkpoint]
copy_mode = "background"
"""
"""Small models would be copied at the boundary; these copies are to go on while whatever a framework does is done.
Continuity may take its time: a run here is over before a few megabytes have been looked at thrice."""
PATIENCE_S = 240.0
"""For one wait; frameworks take a while to start, and these machines are busy."""
EXIT_PATIENCE_S = 60.0
"""For a process that has nothing left to do."""


class Job(Cluster):
    """A cluster running a script that takes `--log-file` and `--final`."""

    def __init__(self, folder: Path, command: list[str], **settings: Any) -> None:
        self.prefix = folder / "out"
        self.lost: set[str] = set()
        super().__init__(folder, command, **settings)

    def step(self, rank: int = 0) -> int:
        """Newest step of a rank."""
        return newest_step(Path(f"{self.prefix}.rank{rank}.jsonl"))

    def losses(self, rank: int) -> dict[int, str]:
        """Loss of every step; the last entry of a repeated step counts."""
        return last_losses(Path(f"{self.prefix}.rank{rank}.jsonl"))

    def join(self, *nodes: str) -> None:
        """Start these nodes and wait until all have joined."""
        for node in nodes:
            self.start(node)
        wanted = len(self.agents)
        self.wait_for(lambda: len(self.facts("node_joined")) >= wanted, f"{nodes} to join", PATIENCE_S)

    def place(self, slot: int) -> str:
        """The node in a slot, by the newest plan."""
        (node,) = (a["node"] for a in self.plans()[-1]["assignments"] if a["slot"] == slot)
        return str(node)

    def trainer(self, rank: int) -> int:
        """The pid of a rank's trainer: the child of its supervisor, or a fork of the node's warm process."""
        node = self.place(rank // self.nproc)
        supervisor = self.workers(node)[rank]
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        return int(children[0]) if children else self.trainers(node)[rank]

    def final(self, rank: int) -> Path:
        """What a rank saved at the end."""
        return Path(f"{self.prefix}.rank{rank}.pt")

    def plans(self) -> list[dict[str, Any]]:
        """Every plan so far."""
        return [r.event.to_json()["data"]["plan"] for r in self.records() if r.event.type == "plan_committed"]

    def facts(self, kind: str) -> list[dict[str, Any]]:
        """Data of every event of a type."""
        return [r.event.to_json()["data"] for r in self.records() if r.event.type == kind]

    def train_until(self, step: int) -> None:
        """Wait for rank 0 to reach a step."""
        self.wait_for(lambda: self.step() >= step or self.ended(), f"step {step}", PATIENCE_S)
        assert self.step() >= step, self.standing()

    def ended(self) -> bool:
        """Whether an agent is gone that was not lost."""
        return any(one.process.poll() is not None for node, one in self.agents.items() if node not in self.lost)

    def lose(self, slot: int) -> None:
        """The machine in a slot is gone."""
        node = self.place(slot)
        self.lost.add(node)
        self.kill_machine(node)

    def wait_resumed(self, generation: int) -> None:
        """Wait until a generation trains."""
        self.wait_for(
            lambda: any(e["generation"] == generation for e in self.facts("training_resumed")),
            f"generation {generation} to train",
            PATIENCE_S,
        )

    def power_cut(self) -> None:
        """All machines lose power: memory is gone, disks stay. Then the same command is started again."""
        alive = [node for node in self.agents if node not in self.lost]
        for node in alive:
            self.kill_machine(node)
            self.agents[node].process.wait()
        for node in alive:
            self.start(node)

    def finish(self) -> None:
        """Wait until all agents that were not lost have ended well."""
        for node in self.agents.keys() - self.lost:
            assert self.wait_exit(node, PATIENCE_S) == 0, self.standing()

    def finish_what_is_compared_with(self, world: int, exit_s: float = EXIT_PATIENCE_S) -> None:
        """Wait for the end of a run that has nothing of ours in it.

        Once all ranks have saved all they hold, nothing that counts can follow. Should torch not come to an end by
        itself then, where each thread stands is told, and the processes are ended.
        """
        finals = [self.final(rank) for rank in range(world)]
        self.wait_for(lambda: self.ended() or all(map(Path.exists, finals)), "all ranks to save", PATIENCE_S)
        try:
            code = self.wait_exit("alone", exit_s)
        except ClusterFailed:
            assert all(map(Path.exists, finals)), self.standing()
            agent = self.agents["alone"]
            before = len(agent.text())
            os.kill(agent.process.pid, signal.SIGSTOP)  # it would start them anew
            workers = self.workers("alone").values()
            for pid in workers:
                os.kill(pid, signal.SIGABRT)  # faulthandler writes all stacks to the output
            self.wait_for(lambda: all(map(has_died, workers)), "the stacks", PATIENCE_S)
            self.kill_machine("alone")
            warnings.warn(f"the undisturbed run did not end by itself: {agent.text()[before:]}", stacklevel=2)
        else:
            assert code == 0, self.standing()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes jobs; whatever is left of them is killed, and each log they wrote must verify."""
    made: list[Job] = []

    def make(name: str, command: list[str], **settings: Any) -> Job:
        folder = tmp_path / name
        folder.mkdir()
        conf = {}
        if settings.get("backend", "lm_resiliency") == "lm_resiliency":
            (folder / "policy.toml").write_text(POLICY)
            conf["lm_resiliency_worker_config"] = str(folder / "policy.toml")
        arguments = [a.replace("{out}", str(folder / "out")) for a in command]
        made.append(Job(folder, arguments, conf=conf, **settings))
        return made[-1]

    yield make
    for job in made:
        job.stop()
    for job in made:
        if job.event_log.exists() and job.records():
            assert lmr_replay(["verify", str(job.event_log)]) == 0, job.standing()


@pytest.fixture
def drill(jobs: Callable[..., Job]) -> Callable[..., Job]:
    """Runs a script undisturbed, then under us and disturbed; returns the second for more.

    A rank is killed, a machine is lost, and if asked for a rank's process is stopped or its parameters are corrupted,
    each at its own time; or all machines lose power, and the framework's own checkpoint is what is left. `corrupt` says
    how corruption is found, `proving` how many steps continuity is given before it to see that state stays as it is,
    `groups` which ranks are to compare their state.
    """

    def run(
        mode: str,
        command: list[str],
        *,
        nodes: int = 2,
        nproc: int = 1,
        steps: int = 60,
        lose: bool = True,
        corrupt: str | None = None,
        proving: int = 3,
        stop: bool = False,
        durable: bool = False,
        groups: set[tuple[int, ...]] | None = None,
        environ: dict[str, str] | None = None,
    ) -> Job:
        command = [*command, "--steps", str(steps), "--log-file", "{out}", "--final", "{out}"]
        settings: dict[str, Any] = {"environ": environ or {}}
        plain = jobs("plain", command, nodes="1", nproc=nproc * nodes, backend="c10d", **settings)
        plain.start("alone", PYTHONFAULTHANDLER="1")
        plain.finish_what_is_compared_with(nproc * nodes)

        standbys = int(lose) + (corrupt is not None)
        paced = [*command, "--pace", "0.1"]
        if corrupt is not None:
            begins = (steps * 3 // 4 if stop else steps // 2 + 2) + proving
            fault = ["--rank", str(nproc), "--generation", str(1 + lose + stop), "--step", str(begins)]
            paced = [FLIP, *fault, "--when", "model" if corrupt == MAJORITY else "at-rest", *paced]
        most = f"{nodes}:{nodes + standbys}" if standbys else str(nodes)
        loop = jobs("loop", paced, nodes=most, nproc=nproc, **settings)
        loop.join("node-1")  # holds the rendezvous
        loop.join(*(f"node-{number}" for number in range(2, nodes + 1)))
        loop.join(*(f"standby-{number}" for number in range(1, standbys + 1)))
        loop.train_until(steps // 4)
        os.kill(loop.trainer(nproc * nodes - 1), signal.SIGKILL)
        loop.wait_resumed(1)
        causes, shown = ["start", "process_crash"], {"rank killed": EQUAL}
        if lose:
            loop.train_until(steps // 2)
            loop.lose(nodes - 1)
            causes.append("node_loss")
            shown["machine lost"] = EQUAL
            loop.wait_resumed(2)
        if stop:
            loop.train_until(steps * 3 // 4)
            os.kill(loop.trainer(nproc), signal.SIGSTOP)
            causes.append("hang")
            shown["rank stopped"] = "named"
            loop.wait_resumed(3)
            (hung,) = loop.facts("rank_hung")
            assert hung["ranks"] == [nproc], hung
            assert hung["artifacts"], hung
        if corrupt is not None:
            causes.append("sdc")
            shown["rank corrupted"] = corrupt
            loop.wait_resumed(len(causes) - 1)
        if durable:
            loop.train_until(steps * 7 // 8)
            persisted = {e["step"]: e["checkpoint_id"] for e in loop.facts("checkpoint_persisted")}
            loop.power_cut()
            causes.append("start")
            shown["all memory lost"] = EQUAL
        loop.finish()
        plans = loop.plans()
        assert [p["cause"]["kind"] for p in plans] == causes, loop.standing()
        complaints = [line for a in loop.agents.values() for line in a.text().splitlines() if "lmr: rank" in line]
        # That a call cannot be computed again costs a check, not the state.
        assert [line for line in complaints if ": replay of " not in line] == []
        assert all(p["checkpoint"]["step"] > 0 for p in plans[1:]), "state was lost: the run began again"
        if corrupt is not None:
            (answer,) = (p for p in plans if p["cause"]["kind"] == "sdc")
            assert (answer["action"], answer["cause"]["ranks"]) == ("replace", [nproc]), answer
            named = {f["recipe"] for f in loop.facts("replay_checked") if f["verdict"] == "corrupt"}
            assert named == ({"continuity"} if corrupt == CONTINUITY else set()), named
        if durable:
            sources = [(s["tier"], s["holder"]) for s in plans[-1]["checkpoint"]["sources"]]
            assert sources == [("durable", persisted[plans[-1]["checkpoint"]["step"]])] * nodes, plans[-1]
        checked = {tuple(f["peers"]) for f in loop.facts("replay_checked") if f["recipe"] == "state_agreement"}
        assert groups is None or checked == groups, checked
        compare(plain, loop, nproc * nodes)
        trust = sorted({p["checkpoint"]["trust"] for p in plans[1:]})
        matrix.note(mode, shown, trust=trust, resumed_at=[p["checkpoint"]["step"] for p in plans[1:]])
        return loop

    return run


def has_died(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent to notice."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def compare(plain: Job, loop: Job, world: int) -> None:
    """Every step's loss and everything at the end, bit for bit."""
    for rank in range(world):
        expected, found = plain.losses(rank), loop.losses(rank)
        assert found.keys() == expected.keys(), f"rank {rank}: {found.keys() ^ expected.keys()}"
        odd = [s for s in expected if found[s] != expected[s]]
        assert not odd, f"rank {rank}: losses differ from step {odd[0]} on, plans {loop.plans()}"
        assert differences(plain.final(rank), loop.final(rank)) == [], f"rank {rank}"
