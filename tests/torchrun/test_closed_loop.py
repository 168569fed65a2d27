"""The loop through the front door: real torchrun agents, real SIGKILL, and the result compared bit by bit."""

import os
import signal

import pytest

pytestmark = pytest.mark.torchrun


def undisturbed(job, steps):
    """The losses of an uninterrupted run of the same script, for every rank."""
    plain = job("--steps", str(steps), name="plain", nodes="1", nproc=4, backend="c10d", policy="")
    plain.start("alone")
    assert plain.wait_exit("alone") == 0, plain.standing()
    return [plain.losses(rank) for rank in range(4)], [plain.entries(rank)[-1] for rank in range(4)]


def test_a_killed_worker_restarts_in_place_and_a_lost_machine_is_replaced_from_memory(job):
    """Both recoveries in one run; losses and final parameters equal the uninterrupted run's."""
    losses, finals = undisturbed(job, 150)
    loop = job("--steps", "150", nodes="2:3")
    loop.start_all("node-1", "node-2", "node-3")
    loop.train_until(30)
    os.kill(max(loop.trainers("node-2").items())[1], signal.SIGKILL)
    loop.wait_resumed(1)
    loop.train_until(80)
    loop.kill_machine("node-2")
    assert loop.wait_exit("node-1", 90) == 0, loop.standing()
    assert loop.wait_exit("node-3", 90) == 0, loop.standing()
    plans = loop.plans()
    assert [p["action"] for p in plans] == ["start", "restart", "replace"], loop.standing()
    assert [a["node"] for a in plans[1]["assignments"]] == ["node-1", "node-2"]
    assert [a["node"] for a in plans[2]["assignments"]] == ["node-1", "node-3"]
    assert plans[2]["checkpoint"]["trust"] == "certified"
    lost = next(s for s in plans[2]["checkpoint"]["sources"] if s["slot"] == 1)
    assert lost["tier"] == "replica"
    for rank in range(4):
        assert loop.losses(rank) == losses[rank], f"rank {rank}"
        assert loop.entries(rank)[-1] == finals[rank]


def test_the_default_budget_of_zero_restarts_is_enough(job):
    """`--max-restarts` is torchrun's; failures we decide about never use it."""
    loop = job("--steps", "80", nodes="2:2", options=())
    loop.start_all("node-1", "node-2")
    loop.train_until(20)
    os.kill(max(loop.trainers("node-1").items())[1], signal.SIGKILL)
    loop.wait_resumed(1)
    assert loop.wait_exit("node-1") == 0, loop.standing()
    assert loop.wait_exit("node-2") == 0, loop.standing()
    assert [p["action"] for p in loop.plans()] == ["start", "restart"]
