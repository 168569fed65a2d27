"""Fixtures that start real torchrun agents."""

import contextlib
import itertools
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmr.integrations.operate.cluster import Cluster
from lmr.integrations.operate.main import main as lmr
from lmr.replay_tool.main import main as lmr_replay

SCRIPTS = Path(__file__).parent / "scripts"
SMALL = SCRIPTS / "small_training.py"
WAITING = SCRIPTS / "waiting_worker.py"
POLICY = "schema_version = 1\n[recovery]\npublish_ms = 100\n"


class Job(Cluster):
    """A cluster running a training script, with looks into its logs."""

    @property
    def log(self) -> Path:
        """Prefix of the ranks' training logs."""
        return self.folder / "log"

    @property
    def event_log(self) -> Path:
        """The event log: beside the restart context, or in the state folder."""
        beside = self.folder / "events.db"
        if beside.exists() or self.context:
            return beside
        return Path(self.environ["XDG_STATE_HOME"]) / "lmr" / self.run_id / "events.db"

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

    def starts(self, generation: int) -> dict[int, dict[str, Any]]:
        """What each rank said when it started in a generation; the last start counts."""
        said = {}
        for rank in range(int(self.nodes.split(":")[0]) * self.nproc):
            for entry in self.entries(rank):
                if entry.get("started") == str(generation):
                    said[rank] = entry
        return said

    def train_until(self, step: int, timeout_s: float = 60) -> None:
        """Wait for rank 0 to reach a step."""
        self.wait_for(lambda: self.step() >= step, f"step {step}", timeout_s)

    def wait_running(self, generation: int, timeout_s: float = 60) -> None:
        """Wait until every rank's script runs in a generation, and the log knows."""
        world = int(self.nodes.split(":")[0]) * self.nproc
        self.wait_for(
            lambda: (
                len(self.starts(generation)) == world
                and sum(e["generation"] == generation for e in self.events("generation_started")) * self.nproc == world
            ),
            f"{world} ranks to run in generation {generation}",
            timeout_s,
        )

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Data of every event of a type."""
        return [r.event.to_json()["data"] for r in self.records() if r.event.type == kind]

    def plans(self) -> list[dict[str, Any]]:
        """Every plan so far."""
        return [data["plan"] for data in self.events("plan_committed")]

    def told(self) -> list[tuple[str, str]]:
        """Action and reason of every plan so far."""
        return [(plan["action"], plan["reason"]) for plan in self.plans()]

    def active(self) -> list[str]:
        """Nodes of the newest plan, by slot."""
        return [a["node"] for a in self.plans()[-1]["assignments"]]

    def wait_joined(self, count: int, timeout_s: float = 60) -> None:
        """Wait for so many joins."""
        self.wait_for(lambda: len(self.events("node_joined")) >= count, f"{count} nodes to join", timeout_s)

    def wait_plan(self, count: int, timeout_s: float = 60) -> dict[str, Any]:
        """Wait for so many plans; the newest of them."""
        self.wait_for(lambda: len(self.plans()) >= count, f"{count} plans", timeout_s)
        return self.plans()[count - 1]

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
            before = len(self.events("node_joined"))
            self.start(node)
            self.wait_joined(before + 1)

    def request(self, verb: str, *node: str) -> None:
        """Say something to the run as its operator, by the `lmr` command."""
        assert lmr([verb, *node, "--why", "a test wants it", "--log", str(self.event_log)]) == 0

    def finish(self, rank: int | None = None) -> None:
        """Tell the waiting workers, or one of them, that their work is done."""
        Path(f"{self.log}.end{'' if rank is None else rank}").touch()

    def finish_well(self, *nodes: str, timeout_s: float = 60) -> None:
        """Let the work end; these agents exit with 0, and nobody printed a traceback of ours."""
        self.finish()
        for node in nodes:
            assert self.wait_exit(node, timeout_s) == 0, self.standing()
            assert "Traceback" not in self.agents[node].text(), self.standing()
        assert self.events("run_closed") == [{"outcome": "succeeded", "reason": "workers_finished"}], self.standing()

    def last_line(self, node: str) -> str:
        """The last thing a node's agent said."""
        return self.agents[node].text().rstrip().rsplit("\n", 1)[-1]

    def beats(self, rank: int) -> dict[int, list[int]]:
        """When each process of a rank was at work, by pid: monotonic nanoseconds."""
        found: dict[int, list[int]] = {}
        for entry in self.entries(rank):
            if "beat" in entry:
                found.setdefault(entry["pid"], []).append(entry["beat"])
        return found

    def assert_same_as(self, other: "Job") -> None:
        """Every loss and the final parameters of every rank equal another run's, bit by bit."""
        for rank in range(int(self.nodes.split(":")[0]) * self.nproc):
            assert self.losses(rank) == other.losses(rank), f"rank {rank}\n{self.standing()}"
            assert self.entries(rank)[-1] == other.entries(rank)[-1], f"rank {rank}\n{self.standing()}"

    def vault(self, node: str) -> int:
        """Pid of a node's vault."""
        for pid in self.processes(node):
            if b"lmr.integrations.gemini.vault" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError(f"{node} has no vault\n{self.standing()}")

    def assert_one_writer(self) -> None:
        """No two processes of one rank were at work at the same time."""
        for rank in range(int(self.nodes.split(":")[0]) * self.nproc):
            lives = sorted((min(times), max(times)) for times in self.beats(rank).values())
            for (_, end), (begin, _) in itertools.pairwise(lives):
                assert end < begin, f"rank {rank} had two writers: {self.beats(rank).keys()}"


@contextlib.contextmanager
def job_factory(folder: Path) -> Iterator[Callable[..., Job]]:
    """Makes jobs; whatever is left of them is killed, and each log they wrote must verify."""
    jobs: list[Job] = []

    def make(*arguments: str, script: Path = SMALL, name: str = "job", policy: str = POLICY, **settings: Any) -> Job:
        own = folder / name
        own.mkdir(parents=True)
        conf = dict(settings.pop("conf", {}))
        if policy:
            (own / "policy.toml").write_text(policy)
            conf["lm_resiliency_worker_config"] = str(own / "policy.toml")
        command = settings.pop("command", None) or [str(script), "--out", str(own / "log"), *arguments]
        # Abstract sockets are the whole machine's: runs at the same time need ids of their own.
        settings.setdefault("run_id", f"run-{uuid.uuid4().hex[:8]}")
        made = Job(own, command, conf=conf, **settings)
        jobs.append(made)
        return made

    try:
        yield make
    finally:
        for made in jobs:
            made.stop()
    for made in jobs:
        if made.records():
            assert lmr_replay(["verify", made.log_url or str(made.event_log), "--run", made.run_id]) == 0, (
                made.standing()
            )


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Makes jobs that train; their logs must verify at the end."""
    with job_factory(tmp_path) as make:
        yield make


@pytest.fixture
def waiting(job: Callable[..., Job]) -> Callable[..., Job]:
    """Makes jobs whose workers have no torch and wait until `finish`: for tests of processes and decisions.

    They start cold: a warm process would load torch, for seconds, and for nobody.
    """

    def make(*arguments: str, **settings: Any) -> Job:
        settings["environ"] = {"LM_RESILIENCY_WARM_START": "0", **settings.get("environ", {})}
        return job(*arguments, script=WAITING, **settings)

    return make


@pytest.fixture(scope="module")
def module_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Job]]:
    """As `job`, for jobs that several tests of a module look at."""
    with job_factory(tmp_path_factory.mktemp("module")) as make:
        yield make


PAIR_STEPS = 160


@pytest.fixture
def pair(job: Callable[..., Job]) -> Callable[..., Job]:
    """Makes jobs that train on two nodes, one rank a node; no others unless `nodes` says so."""

    def make(*arguments: str, **settings: Any) -> Job:
        settings.setdefault("nodes", "2:2")
        return job("--steps", str(PAIR_STEPS), *arguments, nproc=1, **settings)

    return make


@pytest.fixture(scope="module")
def undisturbed(module_job: Callable[..., Job]) -> Job:
    """The run of a `pair` that nothing happened to."""
    plain = module_job(
        "--steps", str(PAIR_STEPS), "--step-s", "0", name="plain", nproc=2, nodes="1", backend="c10d", policy=""
    )
    plain.start("alone")
    assert plain.wait_exit("alone", 240) == 0, plain.standing()
    return plain


@pytest.fixture(scope="module")
def module_waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Job]]:
    """As `waiting`, for jobs that several tests of a module look at."""
    with job_factory(tmp_path_factory.mktemp("module")) as make:
        yield lambda *arguments, **settings: make(*arguments, script=WAITING, **settings)
