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
from pathlib import Path

from lmr.integrations.operate.cluster import Cluster, ClusterFailed
from lmr.integrations.operate.final_state import last_losses

TRAINING = Path(__file__).with_name("training_example.py")
STEPS = 100_000
POLICY = "schema_version = 1\n[recovery]\npublish_ms = 200\n"
FIRST_KILL_STEP = 40
KINDS = ("worker_kill", "node_loss")


def run(*, quick: bool) -> list[dict[str, object]]:
    """One row for each kind of failure.

    Returns:
        kind, ours and stock (medians, seconds from SIGKILL to the first new step anywhere), ratio, steps lost of each,
        repetitions; stock is None where stock torchrun did not recover, with the reason.
    """
    repetitions = 1 if quick else 5
    rows: list[dict[str, object]] = []
    for kind in KINDS:
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
                "bench": f"recovery/{kind}",
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


def _measure(kind: str, backend: str) -> tuple[float, int]:
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
        nodes = "2:2" if backend == "c10d" else "2:3"
        with Cluster(folder / "cluster", command, nodes=nodes, backend=backend, conf=conf) as cluster:
            return _kill_and_wait(cluster, folder / "log.rank0.jsonl", kind)


def _kill_and_wait(cluster: Cluster, rank0: Path, kind: str) -> tuple[float, int]:
    cluster.start("node-1")
    time.sleep(1.0)  # the endpoint's host is the first agent, on both sides
    cluster.start("node-2")
    cluster.wait_for(lambda: _steps(rank0) >= 1, "the first step")
    if kind == "node_loss":
        cluster.start("node-3")
    cluster.wait_for(lambda: _steps(rank0) >= FIRST_KILL_STEP, f"step {FIRST_KILL_STEP}", 120)
    before = rank0.stat().st_size
    pid = _a_trainer(cluster, "node-2")
    reached = _steps(rank0)
    started = time.monotonic()
    if kind == "worker_kill":
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)  # steps that were on their way when the worker died are no new steps
    else:
        cluster.kill_machine("node-2")
        time.sleep(0.2)
    before = max(before, rank0.stat().st_size)
    cluster.wait_for(lambda: rank0.stat().st_size > before and _first_step_after(rank0, before) is not None, kind, 120)
    seconds = time.monotonic() - started
    first = _first_step_after(rank0, before) or 0
    return seconds, max(0, reached - first + 1)


def _a_trainer(cluster: Cluster, node: str) -> int:
    trainers = cluster.trainers(node) or cluster.workers(node)
    return max(trainers.items())[1]


def _steps(log: Path) -> int:
    try:
        return max(last_losses(log), default=0)
    except OSError:
        return 0


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
