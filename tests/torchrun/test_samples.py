"""No sample is lost and none is trained on twice, however samples reach the loop: real torchrun agents and SIGKILL."""

import os
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.torchrun
SAMPLED = Path(__file__).parent / "scripts" / "sampled_training.py"


def samples(loop, rank):
    """Which samples each step was made of; the last entry of a repeated step counts."""
    return {entry["step"]: entry["samples"] for entry in loop.entries(rank) if "samples" in entry}


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.long
def test_a_dead_loader_worker_is_a_software_error_of_its_rank(job):
    """Killed while training, then in the middle of a restore: a restart each time, and no copy is blamed."""
    loop = job("shuffle", "--steps", "90", "--lose-worker-in", "1", nodes="2:2", nproc=1, script=SAMPLED)
    loop.start_all("node-1", "node-2")
    loop.train_until(40, 120)
    trainer = loop.trainers("node-2")[1]
    assert trainer == next(e["pid"] for e in loop.entries(1) if "started" in e)
    os.kill(children(trainer)[0], signal.SIGKILL)
    for node in ("node-1", "node-2"):
        assert loop.wait_exit(node, 180) == 0, loop.standing()
    assert [plan["action"] for plan in loop.plans()] == ["start", "restart", "restart"], loop.standing()
    assert loop.events("restore_failed") == []
    errors = [e["error"] for e in loop.events("worker_exited") if e.get("rank") == 1 and e["error"]]
    assert [e["kind"] for e in errors if e["kind"] != "collective"] == ["exception", "exception"]


@pytest.mark.parametrize(
    "kind",
    [
        "stateful",
        "explicit",
        pytest.param("distributed", marks=pytest.mark.long),
        pytest.param("stream", marks=pytest.mark.long),
        pytest.param("stateful_stream", marks=pytest.mark.long),
    ],
)
def test_every_sample_is_trained_on_once(job, kind):
    """Killed in the second epoch; every step's samples and loss equal those of a run that was left alone."""
    plain = job(
        kind,
        "--steps",
        "70",
        "--step-s",
        "0",
        name="plain",
        nodes="1",
        nproc=2,
        backend="c10d",
        policy="",
        script=SAMPLED,
    )
    plain.start("alone")
    loop = job(kind, "--steps", "70", nodes="2:2", nproc=1, script=SAMPLED)
    loop.start_all("node-1", "node-2")
    loop.train_until(40, 120)
    os.kill(loop.trainers("node-2")[1], signal.SIGKILL)
    for node in ("node-1", "node-2"):
        assert loop.wait_exit(node, 180) == 0, loop.standing()
    assert plain.wait_exit("alone", 120) == 0, plain.standing()
    assert loop.plans()[1]["checkpoint"]["step"] > 0, loop.standing()
    for rank in (0, 1):
        assert len(samples(plain, rank)) == 70
        assert samples(loop, rank) == samples(plain, rank)
        assert loop.losses(rank) == plain.losses(rank)
