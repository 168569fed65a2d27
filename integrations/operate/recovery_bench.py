"""How long training stands still: worker kill and node loss to the first new step, against stock torchrun.

Every contender runs the same script on the same machine, kind of failure by kind of failure; ratios are what is
comparable. One run of the script meets all failures of a kind, with training in between. Stock torchrun restarts from
step 0: the steps it loses are counted, not hidden in the time.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmr.integrations.operate.cluster import Cluster, ClusterFailed
from lmr.integrations.operate.phases import Recovery, recoveries
from lmr.integrations.operate.predecessor import Predecessor, PredecessorMissing

TRAINING = Path(__file__).with_name("training_example.py")
STEPS = 1_000_000
POLICY = "schema_version = 1\n[recovery]\npublish_ms = 200\nrestarts_before_replace = 1000\n"
REPETITIONS = 10
STEPS_BETWEEN = 40
"""Steps between two failures: state is captured and replicated again, and no breaker of ours trips."""
STANDBY_S = 5.0
"""A standby that took the place of the lost one is parked at least for so long before the next loss."""
LOOK_S = 0.002
"""How precisely the first new step is timed."""
FRESH_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Stock torchrun hands restarted workers the store of the ones that failed; gloo then reads stale addresses and does
not form the group. This setting of torch's avoids that: stock at its best is what we compare with."""


@dataclass(frozen=True)
class Kind:
    """One failure: how many agents train with how many ranks, and whether a machine is lost."""

    name: str
    nodes: int
    nproc: int
    machine: bool = False
    conf: dict[str, str] = field(default_factory=dict)
    """Of ours only: stock has no lease."""


KINDS = (
    Kind("worker kill, one machine of four ranks", nodes=1, nproc=4),
    Kind("worker kill, two machines of two ranks", nodes=2, nproc=2),
    Kind(
        "machine lost, a parked standby takes over, lease 1 s",
        nodes=2,
        nproc=2,
        machine=True,
        conf={"lm_resiliency_heartbeat_timeout_ms": "1000"},
    ),
)


@dataclass(frozen=True)
class Contender:
    """Who recovers.

    Attributes:
        name: as the table says it.
        backend: `--rdzv-backend`.
        environ: further environment.
        torchrun: the command; None: this environment's.
    """

    name: str
    backend: str
    environ: dict[str, str] = field(default_factory=dict)
    torchrun: Path | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it writes an event log we can read phases from."""
        return self.backend == "lm_resiliency" and self.torchrun is None


OURS = Contender("lm_resiliency", "lm_resiliency")
STOCK = Contender("stock c10d", "c10d", FRESH_STORES)


@dataclass
class Measured:
    """One contender's failures of one kind."""

    seconds: list[float] = field(default_factory=list)
    """From SIGKILL to the first new step anywhere."""
    steps_lost: list[int] = field(default_factory=list)
    phases_ms: list[dict[str, int]] = field(default_factory=list)
    note: str = ""


def run(*, quick: bool, repetitions: int | None = None, predecessor: bool = False) -> list[dict[str, object]]:
    """Rows for each kind of failure: one a contender, then the phases of ours.

    Args:
        quick: one repetition.
        repetitions: how many instead.
        predecessor: also lm-resiliency 0.2.0, in an environment made for it.
    """
    times = repetitions or (1 if quick else REPETITIONS)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="lmr-bench-") as name:
        contenders = [OURS, STOCK]
        missing = ""
        if predecessor:
            try:
                made = Predecessor.install(Path(name) / "predecessor")
                contenders.append(Contender(made.name, made.backend, torchrun=made.torchrun))
            except PredecessorMissing as error:
                missing = str(error)
        for kind in KINDS:
            folder = Path(name) / str(len(rows))
            measured = {c.name: measure(kind, c, times, folder / str(n)) for n, c in enumerate(contenders)}
            rows += table(kind, measured)
        if missing:
            rows.append({"note": missing})
    return rows


def table(kind: Kind, measured: dict[str, Measured]) -> list[dict[str, object]]:
    """The rows of one kind: medians, spread (lowest and highest), ratio to stock; and the phases of ours."""
    stock = measured[STOCK.name].seconds
    rows: list[dict[str, object]] = []
    for name, found in measured.items():
        seconds = sorted(found.seconds)
        ratio = statistics.median(seconds) / statistics.median(stock) if seconds and stock else None
        rows.append(
            {
                "failure": kind.name,
                "contender": name,
                "median_s": round(statistics.median(seconds), 3) if seconds else None,
                "spread_s": f"{seconds[0]:.2f} to {seconds[-1]:.2f}" if seconds else None,
                "ratio": None if ratio is None else round(ratio, 2),
                "steps_lost": statistics.median(found.steps_lost) if found.steps_lost else None,
                "repetitions": len(seconds),
                "note": found.note,
            }
        )
    phases = measured[OURS.name].phases_ms
    if phases:
        medians = {f"{name}_ms": round(statistics.median(p[name] for p in phases if name in p)) for name in phases[0]}
        rows.append({"failure": kind.name, **medians})
    return rows


def measure(kind: Kind, contender: Contender, times: int, folder: Path) -> Measured:
    """All failures of a kind in one run. What does not recover ends it, with the reason as note."""
    folder.mkdir(parents=True)
    conf: dict[str, str] = {}
    if contender.is_ours:
        (folder / "policy.toml").write_text(POLICY)
        conf = {"lm_resiliency_worker_config": str(folder / "policy.toml"), **kind.conf}
    output = ["--log-file", str(folder / "log"), "--final", str(folder / "final")]
    most = kind.nodes if contender.backend == "c10d" else kind.nodes + 1
    found = Measured()
    with Cluster(
        folder / "cluster",
        [str(TRAINING), "--steps", str(STEPS), *output],
        nodes=f"{kind.nodes}:{most}",
        nproc=kind.nproc,
        options=("--max-restarts=1000",),
        backend=contender.backend,
        context=contender.is_ours,
        conf=conf,
        environ=contender.environ,
        torchrun=contender.torchrun,
    ) as cluster:
        try:
            _measure(kind, contender, times, _Run(cluster, folder / "log.rank0.jsonl"), found)
        except ClusterFailed as failed:
            if contender.is_ours:
                raise
            found.note = _why(failed)
        if contender.is_ours:
            for phases, recovery in zip(found.phases_ms, recoveries(cluster.records()), strict=False):
                phases.update(_phases(recovery, phases.pop("kill")))
    return found


def _measure(kind: Kind, contender: Contender, times: int, training: _Run, found: Measured) -> None:
    cluster = training.cluster
    for number in range(1, kind.nodes + 1):
        cluster.start(f"node-{number}")
        time.sleep(1.0)  # the endpoint's host is the first agent, for every contender
    training.wait_steps(1)
    standby, victim = "standby", f"node-{kind.nodes}"
    if kind.machine:
        cluster.start(standby)
    for _ in range(times):
        training.wait_steps(STEPS_BETWEEN)
        if kind.machine:
            time.sleep(STANDBY_S)
        if contender.is_ours:
            for node in cluster.agents:
                cluster.wait_for(lambda node=node: cluster.is_warm(node), f"{node} to have torch loaded")  # type: ignore[misc]
        reached, killed_ms = training.newest(), time.time_ns() // 1_000_000
        seconds, first = training.kill(victim, machine=kind.machine)
        found.seconds.append(seconds)
        found.steps_lost.append(max(0, reached - first + 1))
        if contender.is_ours:
            found.phases_ms.append({"kill": killed_ms})
        if kind.machine:  # the lost machine comes back as the next standby
            cluster.agents[victim].process.wait()
            cluster.start(victim)
            victim, standby = standby, victim


def _phases(recovery: Recovery, killed_ms: int) -> dict[str, int]:
    return {
        "detect": recovery.detected_ms - killed_ms,
        **{name: end - begin for name, begin, end in recovery.phases()},
    }


def _why(failed: ClusterFailed) -> str:
    """The line of an agent's output that tells most: the last one that speaks of an error, else what was waited for."""
    lines = [line.strip() for line in str(failed).splitlines()]
    errors = [line for line in lines if "Error" in line or "error" in line]
    return f"did not recover: {(errors or lines)[-1 if errors else 0]}"


@dataclass
class _Run:
    """A training and its log, which grows from repetition to repetition."""

    cluster: Cluster
    log: Path
    _since: int = 0

    def steps(self) -> list[int]:
        """Steps logged since the last failure."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as file:
            file.seek(self._since)
            return _steps(file.read().splitlines())

    def newest(self) -> int:
        """The step training has reached."""
        return self.steps()[-1]

    def wait_steps(self, count: int) -> None:
        """Wait for so many steps since the last failure."""
        self.cluster.wait_for(lambda: self._goes_on() and len(self.steps()) >= count, f"{count} steps", 180)

    def _goes_on(self) -> bool:
        for agent in self.cluster.agents.values():
            if agent.process.poll() is not None:
                code = agent.process.returncode
                raise ClusterFailed(f"the agent of {agent.node} ended with exit code {code}\n{self.cluster.standing()}")
        return True

    def kill(self, node: str, *, machine: bool) -> tuple[float, int]:
        """Seconds from the kill to the first step logged by a new process, and that step."""
        pid = max((self.cluster.trainers(node) or self.cluster.workers(node)).items())[1]
        started = time.monotonic()
        if machine:
            self.cluster.kill_machine(node)
            self.cluster.agents[node].process.wait()
            lost = self.cluster.agents.pop(node)
        else:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)  # steps that were on their way when the worker died are no new steps
        self._since = self.log.stat().st_size
        self.cluster.wait_for(lambda: self._goes_on() and bool(self.steps()), "a new step", 180, LOOK_S)
        seconds = time.monotonic() - started
        if machine:
            self.cluster.agents[node] = lost
        return seconds, self.steps()[0]


def _steps(lines: Sequence[bytes]) -> list[int]:
    found = []
    for line in lines:
        if b'"step"' in line and b'"loss"' in line:
            try:
                found.append(int(json.loads(line)["step"]))
            except ValueError:
                continue
    return found
