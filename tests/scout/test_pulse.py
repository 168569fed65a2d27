"""Real trainers, read by a NodeScout while they are blocked or stopped."""

from __future__ import annotations

import asyncio
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

from lmr.engine.events import EventData, LossDiverged, RankHung
from lmr.integrations.scout.detector_policy import HangPolicy
from lmr.integrations.scout.node_scout import NodeScout
from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.replay_policy import ReplayPolicy
from lmr.integrations.scout.run_scout import Ask, RunScout
from lmr.integrations.scout.summary import Summary
from lmr.integrations.torchrun import local_socket

SCRIPT = Path(__file__).parent / "scripts" / "observed.py"
PATIENCE_S = 120
POLICY = ReplayPolicy(hang=HangPolicy(floor_ms=500, artifact_wait_ms=60_000))


class Node:
    """A node with trainers; its summaries go to a RunScout."""

    def __init__(self, folder: Path, world: int) -> None:
        self.folder, self.world = folder, world
        self.name = f"lmr-test-{uuid.uuid4().hex[:12]}"
        self.listener = local_socket.listen(self.name)
        self.listener.settimeout(PATIENCE_S)
        self.run = RunScout(POLICY)
        self.run.begin(0, world)
        self.scout = NodeScout(POLICY, self.sent, folder / "artifacts")
        self.scout.expect(0)
        self.trainers: list[subprocess.Popen[str]] = []

    def sent(self, kind: str, **values: Any) -> None:
        message = json.loads(json.dumps(values))
        if kind == "pulse":
            self.run.heard(message, now_ms())
        else:
            self.run.captured(message)

    def start(self, what: str) -> None:
        for rank in range(self.world):
            env = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.world),
                "LMR_AGENT_SOCKET": self.name,
                "STORE": str(self.folder / "store"),
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, "-u", str(SCRIPT), what]
            self.trainers.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
        while len(self.scout.observed) < self.world:
            connection, _ = self.listener.accept()
            with connection:
                while (received := local_socket.receive(connection)) is not None:
                    if received[0]["kind"] == "pulse_page":
                        self.scout.trainer_said(received[0])
        for trainer in self.trainers:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == "ready\n"

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
        for trainer in self.trainers:
            trainer.kill()
            trainer.wait()
            assert trainer.stdout is not None
            trainer.stdout.close()
        self.listener.close()


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, 1)
    yield made
    made.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, 2)
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
    os.kill(node.trainers[0].pid, signal.SIGSTOP)
    view = node.until(lambda v: v.stopped)
    assert view.step == 10


def test_a_killed_process_is_seen_to_be_gone(node: Node) -> None:
    node.start("block")
    node.trainers[0].kill()
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
    os.kill(pair.trainers[1].pid, signal.SIGSTOP)
    (fact,) = pair.facts()
    assert isinstance(fact, RankHung)
    assert fact.ranks == (1,)
    assert fact.artifacts is not None
    text = next((pair.folder / "artifacts" / a.name).read_text() for a in fact.artifacts if a.name.startswith("rank1-"))
    document = json.loads(text)
    assert document["kernel"]["state"] == "T"
    assert "stopped" in document["stacks"]
