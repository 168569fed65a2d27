"""SCOUT in a real training: a rank that stops is found, named and recovered; a healthy one is accused of nothing."""

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.torchrun

POLICY = """\
schema_version = 1
[recovery]
publish_ms = 100
[replay.hang]
floor_ms = 2000
"""


def test_pytorch_122694_a_stopped_rank_is_a_hang_of_that_rank(job):
    """SIGSTOP on one trainer: the others wait in their collective, nobody exits, and the laggard is named."""
    loop = job("--steps", "120", nodes="2:2", policy=POLICY)
    loop.start_all("node-1", "node-2")
    loop.train_until(30)
    rank, pid = max(loop.trainers("node-2").items())
    os.kill(pid, signal.SIGSTOP)
    loop.wait_resumed(1, 90)
    assert loop.wait_exit("node-1", 90) == 0, loop.standing()
    assert loop.wait_exit("node-2", 90) == 0, loop.standing()
    hung = loop.events("rank_hung")
    assert [h["ranks"] for h in hung] == [[rank]], hung
    kept = {path.name: path for path in Path(loop.folder, "artifacts").rglob("*") if path.is_file()}
    for cited in hung[0]["artifacts"]:
        assert hashlib.sha256(kept[cited["name"]].read_bytes()).hexdigest() == cited["digest"]
        assert kept[cited["name"]].stat().st_mode & 0o077 == 0
    seen = {doc["rank"]: doc for name in kept if "-stacks-" in name for doc in [json.loads(kept[name].read_text())]}
    assert seen[rank]["kernel"]["state"] == "T", "a stopped process gives no stack, the kernel's view stands"
    (witness,) = seen.keys() - {rank}
    assert "small_training.py" in seen[witness]["stacks"], "a healthy rank's stack shows for what it waits"
    assert any(f"rank{witness}-" in a["name"] and "flight-record" in a["name"] for a in hung[0]["artifacts"])
    plan = loop.plans()[1]
    assert (plan["action"], plan["cause"]["kind"], plan["cause"]["nodes"]) == ("restart", "hang", ["node-2"])


def test_a_healthy_training_is_accused_of_nothing(job):
    """No detector speaks in an undisturbed run."""
    loop = job("--steps", "150", nodes="2:2", policy=POLICY)
    loop.start_all("node-1", "node-2")
    assert loop.wait_exit("node-1", 90) == 0, loop.standing()
    assert loop.wait_exit("node-2", 90) == 0, loop.standing()
    kinds = {record.event.type for record in loop.records()}
    accusing = {"rank_hung", "collective_desynced", "rank_slowed", "input_stalled", "checkpoint_stalled"}
    assert not kinds & (accusing | {"loss_diverged", "state_diverged", "worker_exited"}), kinds
    assert [plan["action"] for plan in loop.plans()] == ["start"]
