"""Real trainers, read by a NodeScout while they are blocked or stopped."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmr.engine.events import CheckpointStalled, InputStalled, LossDiverged, RankHung
from lmr.integrations.scout.detector_policy import HangPolicy, StallPolicy
from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.replay_policy import ReplayPolicy

sys.path.insert(0, str(Path(__file__).parent))
from observing import Forking, Node

POLICY = ReplayPolicy(
    hang=HangPolicy(floor_ms=500, artifact_wait_ms=60_000),
    stall=StallPolicy(input_floor_ms=500, checkpoint_floor_ms=500),
)


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    made = Forking()
    yield made
    made.end()


@pytest.fixture
def node(tmp_path: Path, forking: Forking) -> Iterator[Node]:
    made = Node(tmp_path, 1, forking, POLICY)
    yield made
    made.stop()


@pytest.fixture
def pair(tmp_path: Path, forking: Forking) -> Iterator[Node]:
    made = Node(tmp_path, 2, forking, POLICY)
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
        ("safetensors", Phase.CHECKPOINT),
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
