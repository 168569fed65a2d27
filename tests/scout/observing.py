"""Real trainers on this machine, read by a NodeScout whose summaries go to a RunScout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmr.engine.events import EventData
from lmr.integrations.scout.node_scout import NodeScout
from lmr.integrations.scout.replay_policy import ReplayPolicy
from lmr.integrations.scout.run_scout import Ask, RunScout
from lmr.integrations.scout.summary import Summary
from lmr.integrations.torchrun import local_socket

SCRIPTS = Path(__file__).parent / "scripts"
PATIENCE_S = 120


class Forking:
    """A process that has torch loaded and forks trainers: loading it for each would take most of the time."""

    def __init__(self) -> None:
        command = [sys.executable, "-u", str(SCRIPTS / "forking.py")]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, script: str, what: str, env: dict[str, str]) -> int:
        """The pid of a new trainer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        wanted = {"script": str(SCRIPTS / script), "argv": [what], "env": env}
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Node:
    """A node with trainers; its summaries go to a RunScout.

    Args:
        folder: for whatever is written.
        world: ranks, all of them here.
        forking: makes the trainers.
        policy: of SCOUT.
        script: what the trainers run.
    """

    def __init__(
        self, folder: Path, world: int, forking: Forking, policy: ReplayPolicy, script: str = "observed.py"
    ) -> None:
        self.folder, self.world, self.forking, self.script = folder, world, forking, script
        self.name = f"lmr-test-{uuid.uuid4().hex[:12]}"
        self.listener = local_socket.listen(self.name)
        self.listener.settimeout(PATIENCE_S)
        self.run = RunScout(policy)
        self.run.begin(0, world)
        self.scout = NodeScout(policy, self.sent, folder / "artifacts")
        self.scout.expect(0)
        self.trainers: list[int] = []

    def sent(self, kind: str, **values: Any) -> None:
        message = json.loads(json.dumps(values))
        if kind == "pulse":
            self.run.heard(message, now_ms())
        else:
            self.run.captured(message)

    def start(self, what: str) -> None:
        ready = [self.folder / f"ready{rank}" for rank in range(self.world)]
        for rank in range(self.world):
            env = {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.world),
                "LMR_AGENT_SOCKET": self.name,
                "STORE": str(self.folder / "store"),
                "READY": str(ready[rank]),
            }
            self.trainers.append(self.forking.start(self.script, what, env))
        while len(self.scout.observed) < self.world:
            connection, _ = self.listener.accept()
            with connection:
                while (received := local_socket.receive(connection)) is not None:
                    if received[0]["kind"] == "pulse_page":
                        self.scout.trainer_said(received[0])
        end = time.monotonic() + PATIENCE_S
        while not all(path.exists() for path in ready):
            assert time.monotonic() < end, "the trainers did not take ten steps"
            time.sleep(0.01)

    def until(self, holds: Callable[[Summary], bool], rank: int = 0) -> Summary:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            self.scout.report()
            if holds(self.run.standing.ranks[rank]):
                return self.run.standing.ranks[rank]
            time.sleep(0.02)
        raise AssertionError(f"still {self.run.standing.ranks[rank]}")

    def facts(self) -> list[EventData]:
        """Report until something is published."""

        async def watch() -> list[EventData]:
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end:
                self.scout.report()
                said = self.run.tick(now_ms())
                for ask in [s for s in said if isinstance(s, Ask)]:
                    self.scout.asked({"generation": 0, "request": ask.request, "ranks": list(ask.ranks)})
                facts = [s for s in said if not isinstance(s, Ask)]
                if facts:
                    return facts
                await asyncio.sleep(0.05)
            raise AssertionError(f"silent: {self.run.standing}")

        return asyncio.run(watch())

    def stop(self) -> None:
        for pid in self.trainers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.listener.close()


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
