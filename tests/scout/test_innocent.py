"""Trainings that stand still for good reasons: nobody is accused, whatever the reason is."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmr.engine.events import EventData
from lmr.integrations.scout.detector_policy import HangPolicy, StallPolicy, StragglerPolicy
from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.replay_policy import ReplayPolicy
from lmr.integrations.scout.run_scout import Ask

sys.path.insert(0, str(Path(__file__).parent))
from observing import Forking, Node, now_ms

PATIENCE_S = 270
HANG_MS = 3_000
"""A tenth of what it is by default, as all that takes time here."""
POLICY = ReplayPolicy(
    hang=HangPolicy(floor_ms=HANG_MS, step_factor=2),
    stall=StallPolicy(input_floor_ms=2 * HANG_MS, checkpoint_floor_ms=20 * HANG_MS),
    straggler=StragglerPolicy(window_ms=1_000),
)


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    made = Forking()
    yield made
    made.end()


@pytest.mark.long
def test_pauses_that_are_nobody_s_fault_accuse_nobody(tmp_path, forking):
    """Compiling, evaluating, saving, adding up gradients, waiting for data, being stopped, and ending early."""
    node = Node(tmp_path, 3, forking, POLICY, "patient_training.py")
    try:
        node.start(str(HANG_MS / 1_000))
        said, stood = asyncio.run(watch(node, tmp_path / "store.now"))
    finally:
        node.stop()
    assert said == []
    acts = {act for act, phase, still_ms in stood if still_ms > HANG_MS}
    assert acts >= {
        "the first step compiles",
        "everybody evaluates",
        "rank 0 evaluates",
        "rank 0 saves",
        "rank 1 compiles",
        "a loader's worker pauses",
        "one is stopped late in its evaluation",
    }, "where nobody stands still for long enough, nothing is shown"
    assert {act for act, phase, _ in stood if phase == "stopped"} == {
        "one is stopped",
        "two are stopped",
        "one is stopped late in its evaluation",
    }


async def watch(node: Node, now: Path) -> tuple[list[tuple[str, EventData]], set[tuple[str, str, int]]]:
    """What was published during which act; and in which act ranks stood still, in which phase and for how long."""
    said: list[tuple[str, EventData]] = []
    stood: set[tuple[str, str, int]] = set()
    end = time.monotonic() + PATIENCE_S
    while (act := now.read_text() if now.exists() else "") != "done":
        assert time.monotonic() < end, f"still at {act!r}: {node.run.standing}"
        node.scout.report()
        for found in node.run.tick(now_ms()):
            if isinstance(found, Ask):
                node.scout.asked({"generation": 0, "request": found.request, "ranks": list(found.ranks)})
            else:
                said.append((act, found))
        for view in node.run.standing.views():
            stood.add((act, "stopped" if view.stopped else Phase(view.phase).name, view.still_ms))
        await asyncio.sleep(0.1)
    return said, stood
