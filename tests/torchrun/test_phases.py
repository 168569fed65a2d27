"""Losses in the phases of a recovery: before the commit, at the barrier, while the new node restores."""

import os
import signal

import pytest

pytestmark = pytest.mark.torchrun


def kill_trainer(loop, node):
    """SIGKILL one trainer of a node."""
    os.kill(max(loop.trainers(node).items())[1], signal.SIGKILL)


def test_a_machine_is_lost_before_the_commit(waiting):
    """A worker's crash is still settling when a machine goes: one plan that knows both."""
    loop = waiting(nodes="2:3", nproc=1, policy="schema_version = 1\n[recovery]\nsettle_ms = 3000\n")
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    kill_trainer(loop, "node-1")
    loop.wait_for(lambda: bool(loop.events("worker_exited")), "the crash to be known")
    loop.kill_machine("node-2")
    loop.wait_running(1)
    assert loop.told()[1:] == [("replace", "node_lost")], loop.standing()
    assert loop.active() == ["node-1", "node-3"]
    loop.finish_well("node-1", "node-3")
    loop.assert_one_writer()


@pytest.mark.parametrize("fact", ["plan_committed", "generation_started"])
def test_the_node_that_takes_over_is_lost_in_turn(job, fact):
    """At the barrier, or while it restores: the next standby takes the slot, and no step is lost."""
    loop = job("--steps", "120", nodes="2:4", nproc=1)
    loop.start_all("node-1", "node-2", "node-3", "node-4")
    loop.train_until(25)
    loop.kill_machine("node-2")
    loop.wait_plan(2)
    taker = loop.active()[1]

    def it_is_there():
        if fact == "plan_committed":
            return True
        said = [e for e in loop.events(fact) if e["generation"] == 1 and e["node"] == taker]
        return bool(said) or any(e["generation"] == 1 for e in loop.events("training_resumed"))

    loop.wait_for(it_is_there, f"{fact} of {taker}")
    loop.kill_machine(taker)
    other = {"node-3": "node-4", "node-4": "node-3"}[taker]
    for node in ("node-1", other):
        assert loop.wait_exit(node, 120) == 0, loop.standing()
    assert [p["action"] for p in loop.plans()] == ["start", "replace", "replace"], loop.standing()
    assert loop.active() == ["node-1", other]
    assert all(p["checkpoint"]["trust"] == "certified" for p in loop.plans()[1:])
    assert loop.losses(0).keys() == set(range(1, 121))
