"""What being observed costs: the same training with all of SCOUT at its defaults, and with none, in turns.

Two processes train in turns of a few steps on the same machine, so that load and heat meet both alike; each pair of
turns gives one ratio. Besides, what single hooks and checks cost.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from lmr.integrations.scout.node_scout import NodeScout
from lmr.integrations.scout.run_scout import RunScout
from lmr.integrations.torchrun import local_socket
from lmr.integrations.torchrun.worker_policy import WorkerPolicy

STEPS_A_TURN = 10
ROUNDS, ROUNDS_QUICK = 40, 4


class _Agent:
    """Stands for the node's agent: hears the trainer, reads its page at the default interval, compares."""

    def __init__(self, policy: WorkerPolicy, folder: Path) -> None:
        self.name = f"lmr-bench-{uuid.uuid4().hex[:12]}"
        self.reruns: list[dict[str, Any]] = []
        self.cpu_ns = 0
        self._listener = local_socket.listen(self.name)
        self._run = RunScout(policy.replay)
        self._run.begin(0, 1)
        self._scout = NodeScout(policy.replay, self._sent, folder)
        self._scout.expect(0)
        self._every_s = policy.replay.pulse.report_ms / 1000
        self._over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._look, daemon=True).start()

    def _sent(self, _kind: str, **values: Any) -> None:
        self._run.heard(values, time.monotonic_ns() // 1_000_000)

    def _accept(self) -> None:
        while not self._over.is_set():
            connection, _ = self._listener.accept()
            threading.Thread(target=self._hear, args=(connection,), daemon=True).start()

    def _hear(self, connection: Any) -> None:
        with connection:
            while (received := local_socket.receive(connection)) is not None:
                if received[0]["kind"] == "pulse_page":
                    self._scout.trainer_said(received[0])
                elif received[0]["kind"] == "rerun" and received[0]["recipe"]:
                    self.reruns.append(received[0])

    def _look(self) -> None:
        begun = time.thread_time_ns()
        while not self._over.wait(self._every_s):
            self._scout.report()
            self._run.tick(time.monotonic_ns() // 1_000_000)
            self.cpu_ns = time.thread_time_ns() - begun

    def end(self) -> None:
        self._over.set()


def _trainer(what: str, agent: _Agent, policy: WorkerPolicy) -> subprocess.Popen[str]:
    env = os.environ | {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LMR_AGENT_SOCKET": agent.name,
        "LMR_WORKER_POLICY": policy.model_dump_json(),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "lmr.integrations.scout.bench_trainer", what]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(trainer: subprocess.Popen[str], what: object) -> dict[str, Any]:
    assert trainer.stdin is not None
    assert trainer.stdout is not None
    trainer.stdin.write(f"{what}\n")
    trainer.stdin.flush()
    answer: dict[str, Any] = json.loads(trainer.stdout.readline())
    return answer


def run(*, quick: bool) -> list[dict[str, object]]:
    """The ratio of step times with its 95 % interval, of processor time, and rows of one number each.

    Args:
        quick: a tenth of the turns.
    """
    policy = WorkerPolicy(enable_checkpoint=False)
    with tempfile.TemporaryDirectory(prefix="lmr-bench-") as folder:
        agent = _Agent(policy, Path(folder))
        trainers = {what: _trainer(what, agent, policy) for what in ("off", "on")}
        try:
            for trainer in trainers.values():
                _ask(trainer, STEPS_A_TURN)
            turns: dict[str, list[dict[str, int]]] = {"off": [], "on": []}
            for number in range(ROUNDS_QUICK if quick else ROUNDS):
                order = ("off", "on") if number % 2 else ("on", "off")
                for what in order:
                    turns[what].append(_ask(trainers[what], STEPS_A_TURN))
            hooks = _ask(trainers["on"], "hooks")
            agent_ns = agent.cpu_ns
            # At the default interval a short run makes no replay check: one after another here, outside the turns.
            trainers["replays"] = _trainer("on", agent, _replaying(policy))
            _ask(trainers["replays"], STEPS_A_TURN)
        finally:
            for trainer in trainers.values():
                trainer.kill()
                trainer.wait()
            agent.end()
    return [_compared(turns, agent_ns), *_numbers(hooks, agent.reruns)]


def _replaying(policy: WorkerPolicy) -> WorkerPolicy:
    """The same with a replay check after every step."""
    rerun = policy.replay.rerun.model_copy(update={"every_steps": 1})
    return policy.model_copy(update={"replay": policy.replay.model_copy(update={"rerun": rerun})})


def _compared(turns: dict[str, list[dict[str, int]]], agent_ns: int) -> dict[str, object]:
    off, on = turns["off"], turns["on"]
    steps = STEPS_A_TURN * len(on)
    low, middle, high = _interval([b["wall_ns"] / a["wall_ns"] for a, b in zip(off, on, strict=True)])
    cpu_low, cpu_middle, cpu_high = _interval([b["cpu_ns"] / a["cpu_ns"] for a, b in zip(off, on, strict=True)])
    cpu_off, cpu_on = (sum(turn["cpu_ns"] for turn in turns[what]) / steps / 1e6 for what in ("off", "on"))
    return {
        "bench": "a step, everything on / off",
        "step_ms": round(sum(turn["wall_ns"] for turn in off) / steps / 1e6, 1),
        "ratio": round(middle, 4),
        "interval_95": f"{low:.4f} to {high:.4f}",
        "cpu_ratio": round(cpu_middle, 4),
        "cpu_interval_95": f"{cpu_low:.4f} to {cpu_high:.4f}",
        "cpu_ms_off": round(cpu_off, 2),
        "cpu_ms_on": round(cpu_on, 2),
        "cpu_ms_agent": round(agent_ns / steps / 1e6, 3),
        "pairs": len(on),
    }


def _interval(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean with its 95 % interval (normal, of the logarithms)."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logs)
    half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle - half), math.exp(middle), math.exp(middle + half)


def _numbers(hooks: dict[str, float], reruns: list[dict[str, Any]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {"bench": name, "unit": "bytes" if "bytes" in name else "us", "value": str(value)}
        for name, value in hooks.items()
    ]
    for recipe in sorted({told["recipe"] for told in reruns}):
        told = [one for one in reruns if one["recipe"] == recipe]
        took = statistics.median(one["took_us"] for one in told)
        rows.append({"bench": f"replay of {recipe}, both runs", "unit": "us", "value": str(round(took))})
        rows.append({"bench": f"replay of {recipe}, bytes made", "unit": "bytes", "value": str(told[0]["bytes"])})
    return rows
