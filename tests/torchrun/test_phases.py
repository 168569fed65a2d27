"""Losses at bad moments: in each phase of a recovery, again and again, and while nobody can decide."""

import os
import signal
import time

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


@pytest.mark.long
@pytest.mark.parametrize("fact", ["plan_committed", "generation_started", "state_restored"])
def test_the_node_that_takes_over_is_lost_in_turn(job, fact):
    """At the barrier, while it restores, before its first step: the next standby takes the slot, no step is lost."""
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


@pytest.mark.long
def test_two_standbys_are_consumed_one_after_the_other(waiting):
    """Each takes the slot of the machine before it."""
    loop = waiting(nodes="2:4", nproc=1)
    loop.start_all("node-1", "node-2", "node-3", "node-4")
    loop.wait_running(0)
    loop.kill_machine("node-2")
    loop.wait_running(1)
    assert loop.active() == ["node-1", "node-3"]
    loop.kill_machine("node-3")
    loop.wait_running(2)
    assert loop.active() == ["node-1", "node-4"]
    loop.finish_well("node-1", "node-4")
    loop.assert_one_writer()


@pytest.mark.long
def test_twenty_restarts_in_a_row(job):
    """One worker is killed twenty times; torchrun's budget of four is never touched, and no step is lost."""
    policy = "schema_version = 1\n[recovery]\npublish_ms = 50\nrestarts_before_replace = 1000\n"
    loop = job("--steps", "700", "--step-s", "0.02", nodes="1:1", policy=policy)
    loop.start_all("node-1")
    for generation in range(20):
        loop.wait_resumed(generation, 120)
        retained = len(loop.events("checkpoint_captured"))
        loop.wait_for(lambda seen=retained: len(loop.events("checkpoint_captured")) > seen, "a newer step")
        kill_trainer(loop, "node-1")
        loop.wait_plan(generation + 2)
    assert loop.wait_exit("node-1", 180) == 0, loop.standing()
    assert [p["action"] for p in loop.plans()] == ["start"] + ["restart"] * 20
    assert loop.losses(0).keys() == set(range(1, 701))


@pytest.mark.long
def test_the_decider_is_paused_for_twenty_seconds(waiting):
    """Embedded: nobody can decide, so the others work on; it wakes up and takes nobody for lost."""
    loop = waiting(nodes="3:3", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    os.kill(loop.agents["node-1"].process.pid, signal.SIGSTOP)
    time.sleep(20)
    os.kill(loop.agents["node-1"].process.pid, signal.SIGCONT)
    time.sleep(5)  # long enough to take somebody for lost
    assert all(len(loop.beats(rank)) == 1 for rank in range(3)), loop.standing()
    loop.finish_well("node-1", "node-2", "node-3")
    assert len(loop.plans()) == 1
    loop.assert_one_writer()


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"a secret of this test's run only")
    return {"LM_RESILIENCY_SECRET_FILE": str(path)}


@pytest.mark.long
def test_a_paused_decider_wakes_up_after_another_took_over(waiting, postgres_url, secret):
    """With a database: its workers end though it is frozen, a standby has the slot, 20 s later it comes back as one."""
    loop = waiting(nodes="2:3", nproc=1, log_url=postgres_url, environ=secret)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    os.kill(loop.agents["node-1"].process.pid, signal.SIGSTOP)
    wakes_up = time.monotonic() + 20
    loop.wait_running(1)
    assert loop.active() == ["node-3", "node-2"]
    time.sleep(max(0.0, wakes_up - time.monotonic()))
    os.kill(loop.agents["node-1"].process.pid, signal.SIGCONT)
    loop.wait_joined(4)
    loop.finish_well("node-1", "node-2", "node-3")
    assert [p["to_generation"] for p in loop.plans()] == [0, 1], loop.told()
    loop.assert_one_writer()


@pytest.mark.long
def test_the_database_is_away_for_a_minute(waiting, own_postgres, secret):
    """No worker stops, and a crash that falls into it is decided about once it is back."""
    loop = waiting(nodes="2:2", nproc=1, log_url=own_postgres.url, environ=secret)
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    own_postgres.stop("immediate")
    time.sleep(60)
    assert [len(loop.beats(rank)) for rank in (0, 1)] == [1, 1], loop.standing()
    kill_trainer(loop, "node-2")
    own_postgres.start()
    loop.wait_running(1)
    assert loop.told()[1:] == [("restart", "process_crash")]
    loop.finish_well("node-1", "node-2")
    loop.assert_one_writer()
