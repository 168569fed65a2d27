"""Real trainers, read by a NodeScout while they are blocked or stopped."""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmr.engine.events import CheckpointStalled, EventData, InputStalled, LossDiverged, RankHung
from lmr.integrations.scout.detector_policy import HangPolicy, StallPolicy
from lmr.integrations.scout.node_scout import NodeScout
from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.replay_policy import ReplayPolicy
from lmr.integrations.scout.run_scout import Ask, RunScout
from lmr.integrations.scout.summary import Summary
from lmr.integrations.torchrun import local_socket

SCRIPTS = Path(__file__).parent / "scripts"
PATIENCE_S = 120
POLICY = ReplayPolicy(
    hang=HangPolicy(floor_ms=500, artifact_wait_ms=60_000),
    stall=StallPolicy(input_floor_ms=500, checkpoint_floor_ms=500),
)


class Forking:
    """A process that has torch loaded and forks trainers: loading it for each would take most of the time."""

    def __init__(self) -> None:
        command = [sys.executable, "-u", str(SCRIPTS / "forking.py")]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, what: str, env: dict[str, str]) -> int:
        """The pid of a new trainer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        wanted = {"script": str(SCRIPTS / "observed.py"), "argv": [what], "env": env}
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Node:
    """A node with trainers; its summaries go to a RunScout."""

    def __init__(self, folder: Path, world: int, forking: Forking) -> None:
        self.folder, self.world, self.forking = folder, world, forking
        self.name = f"lmr-test-{uuid.uuid4().hex[:12]}"
        self.listener = local_socket.listen(self.name)
        self.listener.settimeout(PATIENCE_S)
        self.run = RunScout(POLICY)
        self.run.begin(0, world)
        self.scout = NodeScout(POLICY, self.sent, folder / "artifacts")
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
            self.trainers.append(self.forking.start(what, env))
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


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    made = Forking()
    yield made
    made.end()


@pytest.fixture
def node(tmp_path: Path, forking: Forking) -> Iterator[Node]:
    made = Node(tmp_path, 1, forking)
    yield made
    made.stop()


@pytest.fixture
def pair(tmp_path: Path, forking: Forking) -> Iterator[Node]:
    made = Node(tmp_path, 2, forking)
    yield made
    made.stop()


def test_a_blocked_process_is_read(node: Node) -> None:
    node.start("block")
    view = node.until(lambda v: v.still_ms > 300)
    assert (view.step, view.steps_here, view.batches, view.state) == (10, 10, 10, "S")
    assert view.phase == Phase.IDLE
    assert view.own_us > 0
    assert view.data_us > 0
    assert view.role != 0


def test_a_stopped_process_is_read_and_seen_to_be_stopped(node: Node) -> None:
    node.start("block")
    os.kill(node.trainers[0], signal.SIGSTOP)
    view = node.until(lambda v: v.stopped)
    assert view.step == 10


def test_a_killed_process_is_seen_to_be_gone(node: Node) -> None:
    node.start("block")
    os.kill(node.trainers[0], signal.SIGKILL)
    assert node.until(lambda v: v.gone).step == 10


@pytest.mark.parametrize(
    ("what", "phase"),
    [
        ("eval", Phase.EVAL),
        ("declared", Phase.DECLARED),
        ("save", Phase.CHECKPOINT),
        ("distributed save", Phase.CHECKPOINT),
    ],
)
def test_long_sections_are_recognized(node: Node, what: str, phase: Phase) -> None:
    node.start(what)
    assert node.until(lambda v: v.phase == phase).step == 10


def test_a_loss_that_is_not_finite_is_told_with_its_step(node: Node) -> None:
    node.start("nan")
    assert node.facts() == [LossDiverged(generation=0, step=7, ranks=(0,))]


@pytest.mark.parametrize(
    ("what", "fact"), [("batch", InputStalled), ("save", CheckpointStalled), ("distributed save", CheckpointStalled)]
)
def test_storage_that_does_not_answer_is_a_stall_of_the_rank_that_waits(node: Node, what: str, fact: Any) -> None:
    node.start(what)
    (found,) = node.facts()
    assert isinstance(found, fact)
    assert (found.rank, found.step) == (0, 10)
    assert found.stalled_ms >= 500


def test_the_rank_that_never_enters_a_collective_is_named_with_evidence(pair: Node) -> None:
    pair.start("absent")
    (fact,) = pair.facts()
    assert isinstance(fact, RankHung)
    assert fact.ranks == (1,)
    assert fact.collective is not None
    assert (fact.collective.seq, fact.collective.op) == (11, "all_reduce torch.float32 3 SUM")
    assert fact.artifacts is not None
    saved = {a.name: (pair.folder / "artifacts" / a.name).read_text() for a in fact.artifacts}
    stacks = {json.loads(text)["rank"]: json.loads(text)["stacks"] for name, text in saved.items() if "stacks" in name}
    assert "wait_for_ever" in stacks[1]
    assert "all_reduce" in stacks[0]
    assert any("flight-record" in name for name in saved)


def test_a_stopped_rank_is_a_hang_and_its_evidence_is_what_the_kernel_knows(pair: Node) -> None:
    pair.start("block")
    os.kill(pair.trainers[1], signal.SIGSTOP)
    (fact,) = pair.facts()
    assert isinstance(fact, RankHung)
    assert fact.ranks == (1,)
    assert fact.artifacts is not None
    text = next((pair.folder / "artifacts" / a.name).read_text() for a in fact.artifacts if a.name.startswith("rank1-"))
    document = json.loads(text)
    assert document["kernel"]["state"] == "T"
    assert "stopped" in document["stacks"]
