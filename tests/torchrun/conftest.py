"""Fixtures that start real torchrun agents."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmr.integrations.operate.cluster import Cluster
from lmr.replay_tool.main import main as lmr_replay

SMALL = Path(__file__).parent / "scripts" / "small_training.py"
POLICY = "schema_version = 1\n[recovery]\npublish_ms = 100\n"


class Job(Cluster):
    """A cluster running the small training, with looks into its logs."""

    @property
    def log(self) -> Path:
        """Prefix of the ranks' training logs."""
        return self.folder / "log"

    def entries(self, rank: int = 0) -> list[dict[str, Any]]:
        """What one rank logged, whole lines only."""
        path = Path(f"{self.log}.rank{rank}.jsonl")
        if not path.exists():
            return []
        found = []
        for line in path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def step(self, rank: int = 0) -> int:
        """Newest step of a rank."""
        return max((e["step"] for e in self.entries(rank) if "loss" in e), default=0)

    def losses(self, rank: int = 0) -> dict[int, str]:
        """Loss of every step; the last entry of a repeated step counts."""
        return {e["step"]: e["loss"] for e in self.entries(rank) if "loss" in e}

    def train_until(self, step: int, timeout_s: float = 60) -> None:
        """Wait for rank 0 to reach a step."""
        self.wait_for(lambda: self.step() >= step, f"step {step}", timeout_s)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Data of every event of a type."""
        return [r.event.to_json()["data"] for r in self.records() if r.event.type == kind]

    def plans(self) -> list[dict[str, Any]]:
        """Every plan so far."""
        return [data["plan"] for data in self.events("plan_committed")]

    def wait_joined(self, count: int) -> None:
        """Wait for so many joins."""
        self.wait_for(lambda: len(self.events("node_joined")) >= count, f"{count} nodes to join")

    def wait_resumed(self, generation: int, timeout_s: float = 60) -> None:
        """Wait until a generation trains."""
        self.wait_for(
            lambda: any(e["generation"] == generation for e in self.events("training_resumed")),
            f"generation {generation} to train",
            timeout_s,
        )

    def start_all(self, *nodes: str) -> None:
        """Start agents one after the other, so that slots follow the order."""
        for node in nodes:
            self.start(node)
            self.wait_joined(len(self.agents))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes jobs; whatever is left of them is killed, and each log they wrote must verify."""
    jobs: list[Job] = []

    def make(*arguments: str, name: str = "job", policy: str = POLICY, **settings: Any) -> Job:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        conf = dict(settings.pop("conf", {}))
        if policy:
            (folder / "policy.toml").write_text(policy)
            conf["lm_resiliency_worker_config"] = str(folder / "policy.toml")
        command = settings.pop("command", None) or [str(SMALL), "--out", str(folder / "log"), *arguments]
        made = Job(folder, command, conf=conf, **settings)
        jobs.append(made)
        return made

    yield make
    for made in jobs:
        made.stop()
    for made in jobs:
        if made.event_log.exists() and made.records():
            assert lmr_replay(["verify", str(made.event_log)]) == 0, made.standing()
