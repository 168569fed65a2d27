"""One drill for every framework and mode: an unmodified script, undisturbed and disturbed, compared bit by bit."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmr.integrations.operate.cluster import Cluster
from lmr.integrations.operate.final_state import differences, last_losses, newest_step
from lmr.replay_tool.main import main as lmr_replay

POLICY = "schema_version = 1\n[recovery]\npublish_ms = 100\n"
PATIENCE_S = 240.0
"""For one wait; frameworks take a while to start, and these machines are busy."""


class Job(Cluster):
    """A cluster running a script that takes `--log-file` and `--final`."""

    def __init__(self, folder: Path, command: list[str], **settings: Any) -> None:
        self.prefix = folder / "out"
        super().__init__(folder, command, **settings)

    def step(self, rank: int = 0) -> int:
        """Newest step of a rank."""
        return newest_step(Path(f"{self.prefix}.rank{rank}.jsonl"))

    def losses(self, rank: int) -> dict[int, str]:
        """Loss of every step; the last entry of a repeated step counts."""
        return last_losses(Path(f"{self.prefix}.rank{rank}.jsonl"))

    def trainer(self, node: str, rank: int) -> int:
        """The pid of a rank's trainer: the child of its supervisor, not one of the trainer's own children."""
        children = Path(f"/proc/{self.workers(node)[rank]}/task/{self.workers(node)[rank]}/children").read_text()
        return int(children.split()[0])

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
        """Whether an agent is gone."""
        return any(agent.process.poll() is not None for agent in self.agents.values())

    def wait_resumed(self, generation: int) -> None:
        """Wait until a generation trains."""
        self.wait_for(
            lambda: any(e["generation"] == generation for e in self.facts("training_resumed")),
            f"generation {generation} to train",
            PATIENCE_S,
        )

    def finish(self, *nodes: str) -> None:
        """Wait until these agents have ended well."""
        for node in nodes:
            assert self.wait_exit(node, PATIENCE_S) == 0, self.standing()


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
    """Runs a script undisturbed, then under us with a killed rank and a lost machine; returns the second for more."""

    def run(
        command: list[str], *, nproc: int = 1, steps: int = 60, lose: bool = True, environ: dict[str, str] | None = None
    ) -> Job:
        command = [*command, "--steps", str(steps), "--log-file", "{out}", "--final", "{out}"]
        nodes = 2 if lose else 1
        settings: dict[str, Any] = {"environ": environ or {}}
        plain = jobs("plain", command, nodes="1", nproc=nproc * nodes, backend="c10d", **settings)
        plain.start("alone")
        plain.finish("alone")

        paced = [*command, "--pace", "0.05"]
        loop = jobs("loop", paced, nodes="2:3" if lose else "1", nproc=nproc, **settings)
        names = ["node-1", "node-2", "node-3"][: 3 if lose else 1]
        for node in names:
            loop.start(node)
            loop.wait_for(lambda: len(loop.facts("node_joined")) >= len(loop.agents), f"{node} to join", PATIENCE_S)
        loop.train_until(steps // 4)
        os.kill(loop.trainer(names[:2][-1], nproc * nodes - 1), signal.SIGKILL)
        loop.wait_resumed(1)
        expected = ["start", "restart"]
        if lose:
            loop.train_until(steps // 2)
            loop.kill_machine("node-2")
            expected.append("replace")
        loop.finish(*(n for n in names if n != "node-2"))
        plans = loop.plans()
        assert [p["action"] for p in plans] == expected, loop.standing()
        complaints = [line for a in loop.agents.values() for line in a.text().splitlines() if "lmr: rank" in line]
        assert complaints == []
        assert all(p["checkpoint"]["step"] > 0 for p in plans[1:]), "state was lost: the run began again"
        compare(plain, loop, nproc * nodes)
        record(loop)
        return loop

    return run


def compare(plain: Job, loop: Job, world: int) -> None:
    """Every step's loss and everything at the end, bit for bit."""
    for rank in range(world):
        expected, found = plain.losses(rank), loop.losses(rank)
        assert found.keys() == expected.keys(), f"rank {rank}: {found.keys() ^ expected.keys()}"
        odd = [s for s in expected if found[s] != expected[s]]
        assert not odd, f"rank {rank}: losses differ from step {odd[0]} on, plans {loop.plans()}"
        assert differences(plain.final(rank), loop.final(rank)) == [], f"rank {rank}"


def record(loop: Job) -> None:
    """Leave what was shown where the matrix in the documentation is made from, if somebody asked for it."""
    where = os.environ.get("LMR_MATRIX")
    if where:
        test = os.environ["PYTEST_CURRENT_TEST"].split("::")[-1].split(" ")[0]
        plans = loop.plans()
        line = {
            "test": test,
            "python": ".".join(map(str, sys.version_info[:3])),
            "resumed_at": [p["checkpoint"]["step"] for p in plans[1:]],
            "actions": [p["action"] for p in plans],
            "trust": [p["checkpoint"]["trust"] for p in plans[1:]],
        }
        with Path(where).open("a") as lines:
            lines.write(json.dumps(line) + "\n")
