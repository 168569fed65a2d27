"""How long training stands still: worker kill and node loss to the first new step, against stock torchrun.

Both sides run the same script on the same machine, one after the other, repetition by repetition; ratios are what is
comparable. Stock torchrun restarts from step 0: the steps it loses are counted, not hidden in the time.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from lmr.integrations.operate.cluster import Cluster, ClusterFailed
from lmr.integrations.operate.final_state import newest_step

TRAINING = Path(__file__).with_name("training_example.py")
STEPS = 100_000
POLICY = "schema_version = 1\n[recovery]\npublish_ms = 200\n"
FIRST_KILL_STEP = 40
FRESH_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Stock torchrun hands restarted workers the store of the ones that failed; gloo then reads stale addresses and does
not form the group. This setting of torch's avoids that: stock at its best is what we compare with."""


@dataclass(frozen=True)
class Kind:
    """One failure: how many agents train with how many ranks, and whether a machine is lost."""

    nodes: int
    nproc: int
    machine: bool


KINDS = {
    "worker_kill, one machine": Kind(nodes=1, nproc=4, machine=False),
    "worker_kill, two machines": Kind(nodes=2, nproc=2, machine=False),
    "node_loss, two machines": Kind(nodes=2, nproc=2, machine=True),
}


def run(*, quick: bool) -> list[dict[str, object]]:
    """One row for each kind of failure.

    Returns:
        kind, ours and stock (medians, seconds from SIGKILL to the first new step anywhere), ratio, steps lost of each,
        repetitions; stock is None where stock torchrun did not recover, with the reason.
    """
    repetitions = 1 if quick else 5
    rows: list[dict[str, object]] = []
    for name, kind in KINDS.items():
        measured: dict[str, list[tuple[float, int]]] = {"lm_resiliency": [], "c10d": []}
        why = ""
        for _ in range(repetitions):
            for backend in measured:
                try:
                    measured[backend].append(_measure(kind, backend))
                except ClusterFailed as failed:
                    why = str(failed).splitlines()[0]
                    if backend == "lm_resiliency":
                        raise
        ours, stock = measured["lm_resiliency"], measured["c10d"]
        median = statistics.median(seconds for seconds, _ in ours)
        stock_median = statistics.median(seconds for seconds, _ in stock) if stock else None
        rows.append(
            {
                "bench": name,
                "ours_s": round(median, 3),
                "ours_spread_s": [round(s, 3) for s, _ in sorted(ours)],
                "stock_s": None if stock_median is None else round(stock_median, 3),
                "stock_spread_s": [round(s, 3) for s, _ in sorted(stock)],
                "ratio": None if stock_median is None else round(median / stock_median, 2),
                "ours_steps_lost": statistics.median(lost for _, lost in ours),
                "stock_steps_lost": statistics.median(lost for _, lost in stock) if stock else None,
                "repetitions": repetitions,
                "note": why,
            }
        )
    return rows


def _measure(kind: Kind, backend: str) -> tuple[float, int]:
    """Seconds from the kill to the first step logged by a new process, and the steps that were lost."""
    with tempfile.TemporaryDirectory(prefix="lmr-bench-") as name:
        folder = Path(name)
        conf: dict[str, str] = {}
        if backend == "lm_resiliency":
            policy = folder / "policy.toml"
            policy.write_text(POLICY)
            conf = {"lm_resiliency_worker_config": str(policy)}
        output = ["--log-file", str(folder / "log"), "--final", str(folder / "final")]
        command = [str(TRAINING), "--steps", str(STEPS), *output]
        most = kind.nodes if backend == "c10d" else kind.nodes + 1
        nodes = f"{kind.nodes}:{most}"
        environ = FRESH_STORES if backend == "c10d" else {}
        with Cluster(
            folder / "cluster", command, nodes=nodes, nproc=kind.nproc, backend=backend, conf=conf, environ=environ
        ) as cluster:
            return _kill_and_wait(cluster, folder / "log.rank0.jsonl", kind)


def _kill_and_wait(cluster: Cluster, rank0: Path, kind: Kind) -> tuple[float, int]:
    for number in range(1, kind.nodes + 1):
        cluster.start(f"node-{number}")
        time.sleep(1.0)  # the endpoint's host is the first agent, on both sides
    cluster.wait_for(lambda: newest_step(rank0) >= 1, "the first step")
    if kind.machine:
        cluster.start("standby")
    cluster.wait_for(lambda: newest_step(rank0) >= FIRST_KILL_STEP, f"step {FIRST_KILL_STEP}", 120)
    victim = f"node-{kind.nodes}"
    pid = _a_trainer(cluster, victim)
    reached = newest_step(rank0)
    started = time.monotonic()
    if kind.machine:
        cluster.kill_machine(victim)
    else:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)  # steps that were on their way when the worker died are no new steps
    before = rank0.stat().st_size
    cluster.wait_for(lambda: _resumed(cluster, rank0, before, victim if kind.machine else None), "a new step", 120)
    seconds = time.monotonic() - started
    first = _first_step_after(rank0, before) or 0
    return seconds, max(0, reached - first + 1)


def _resumed(cluster: Cluster, rank0: Path, before: int, lost: str | None) -> bool:
    for agent in cluster.agents.values():
        if agent.node != lost and agent.process.poll() is not None:
            code = agent.process.returncode
            raise ClusterFailed(f"the agent of {agent.node} ended with exit code {code}\n{cluster.standing()}")
    return rank0.stat().st_size > before and _first_step_after(rank0, before) is not None


def _a_trainer(cluster: Cluster, node: str) -> int:
    trainers = cluster.trainers(node) or cluster.workers(node)
    return max(trainers.items())[1]


def _first_step_after(log: Path, offset: int) -> int | None:
    with log.open("rb") as file:
        file.seek(offset)
        lines = file.read().splitlines()
    for line in lines:
        if b'"step"' in line and b'"loss"' in line:
            try:
                return int(json.loads(line)["step"])
            except ValueError:
                continue
    return None
