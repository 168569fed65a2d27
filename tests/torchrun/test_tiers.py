"""Where state comes back from, rung by rung: real agents, real kills, and the result equal bit by bit."""

import json
import signal
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torchrun, pytest.mark.timeout(900)]  # two lives of a run, also on a busy machine

PUBLISH = "[recovery]\npublish_ms = 100\n"


def policy(**checkpoint):
    """A policy file with these `[checkpoint]` keys."""
    rows = "".join(f"{key} = {json.dumps(value)}\n" for key, value in checkpoint.items())
    return f"schema_version = 1\n[checkpoint]\n{rows}{PUBLISH}"


def power_off(loop, *nodes):
    """The machines lose power: processes and memory are gone, disks stay."""
    for node in nodes:
        loop.kill_machine(node)
        loop.agents[node].process.wait()


def trusted(loop):
    """Checkpoints of the script at a step that passed its check, by step."""
    clean = {(e["generation"], e["step"]) for e in loop.events("replay_checked") if e["verdict"] == "clean"}
    persisted = loop.events("checkpoint_persisted")
    return {e["step"]: e["checkpoint_id"] for e in persisted if (e["generation"], e["step"]) in clean}


def started_again(loop, undisturbed, *nodes):
    """The same command on the same nodes; returns the plan the run goes on with."""
    before = len(loop.plans())
    loop.start_all(*nodes)
    for node in nodes:
        assert loop.wait_exit(node, 180) == 0, loop.standing()
    assert len(loop.events("run_reopened")) == 1
    loop.assert_same_as(undisturbed)
    return loop.plans()[before]


def test_the_host_is_lost_and_the_same_command_goes_on_from_the_vaults(pair, undisturbed):
    """Embedded log: every agent ends with the reason, the vaults wait for the next ones."""
    loop = pair(name="host")
    loop.start_all("node-1", "node-2")
    loop.train_until(60, 120)
    loop.agents["node-1"].process.kill()
    assert loop.wait_exit("node-2", 60) == 1, loop.standing()
    assert loop.last_line("node-2").endswith("the rendezvous host is gone; its event log is on that machine's disk")
    plan = started_again(loop, undisturbed, "node-1", "node-2")
    assert (plan["action"], plan["from_generation"], plan["to_generation"]) == ("start", 0, 1)
    assert plan["checkpoint"]["step"] >= 40
    assert [s["tier"] for s in plan["checkpoint"]["sources"]] == ["memory", "memory"]


@pytest.mark.long
def test_after_a_power_cut_the_same_command_goes_on_from_the_disks(pair, undisturbed, tmp_path):
    loop = pair(name="power", policy=policy(disk_folder=str(tmp_path / "disk"), disk_every_s=0))
    loop.start_all("node-1", "node-2")
    loop.wait_for(lambda: max((e["step"] for e in loop.events("checkpoint_flushed")), default=0) >= 20, "disk", 120)
    power_off(loop, "node-1", "node-2")
    plan = started_again(loop, undisturbed, "node-1", "node-2")
    assert plan["checkpoint"]["step"] >= 10
    assert [s["tier"] for s in plan["checkpoint"]["sources"]] == ["disk", "disk"]
    assert {e["tier"] for e in loop.events("state_restored") if e["generation"] == 1} == {"disk"}


@pytest.mark.long
def test_a_damaged_disk_copy_is_a_rung_with_its_reason(pair, undisturbed, tmp_path):
    """One byte of a shard of the newest step is wrong: the other node's copy of the same slot is taken."""
    loop = pair(name="rung", policy=policy(disk_folder=str(tmp_path / "disk"), disk_every_s=0))
    loop.start_all("node-1", "node-2")
    loop.wait_for(lambda: max((e["step"] for e in loop.events("checkpoint_flushed")), default=0) >= 20, "disk", 120)
    power_off(loop, "node-1", "node-2")
    for shards in (tmp_path / "disk" / loop.run_id / "node-2").glob("*.slot-1.*.shards"):
        body = bytearray(shards.read_bytes())
        body[100] ^= 1
        shards.write_bytes(bytes(body))
    started_again(loop, undisturbed, "node-1", "node-2")
    failed = loop.events("restore_failed")[0]
    assert (failed["why"], failed["tier"], failed["holder"], failed["slot"]) == ("digest_mismatch", "disk", "node-2", 1)
    plan = next(p for p in loop.plans() if p["from_generation"] == 1)
    assert {"option", "reason"} <= plan["rejected"][0].keys()
    assert (f"step {failed['step']} slot 1 disk on node-2", "digest_mismatch") in [
        (r["option"], r["reason"]) for r in plan["rejected"]
    ]
    assert [(s["holder"], s["tier"]) for s in plan["checkpoint"]["sources"]][1] == ("node-1", "disk")


@pytest.mark.long
def test_all_are_told_to_end_and_save_first(pair, undisturbed, tmp_path):
    """As a scheduler preempts a job: SIGTERM everywhere. What was saved is in the log, and the run goes on from it."""
    loop = pair(name="term", policy=policy(disk_folder=str(tmp_path / "disk"), disk_every_s=3600))
    loop.start_all("node-1", "node-2")
    loop.wait_for(lambda: loop.events("checkpoint_flushed"), "the first step to go to disk", 120)
    loop.train_until(max(e["step"] for e in loop.events("checkpoint_flushed")) + 30, 120)
    for node in ("node-2", "node-1"):
        loop.agents[node].process.send_signal(signal.SIGTERM)
    for node in ("node-2", "node-1"):
        assert loop.wait_exit(node, 60) == 1, loop.standing()
        assert " saved " in loop.agents[node].text()
    reached = loop.step()
    power_off(loop, "node-1", "node-2")
    plan = started_again(loop, undisturbed, "node-1", "node-2")
    assert plan["checkpoint"]["step"] >= reached - 20
    assert {s["tier"] for s in plan["checkpoint"]["sources"]} == {"disk"}


@pytest.mark.long
def test_a_node_that_is_told_to_end_hands_its_newest_step_over(pair, undisturbed):
    """The others keep the same step; the standby goes on from it."""
    loop = pair(name="drain", nodes="2:3")
    loop.start_all("node-1", "node-2", "node-3")
    loop.train_until(40, 120)
    loop.agents["node-2"].process.send_signal(signal.SIGTERM)
    assert loop.wait_exit("node-2", 60) == 1
    assert loop.wait_exit("node-1", 180) == 0, loop.standing()
    loop.assert_same_as(undisturbed)
    plan = loop.plans()[1]
    assert (plan["reason"], plan["checkpoint"]["sources"][1]["tier"]) == ("node_left", "replica")
    assert " saved " in loop.agents["node-2"].text()


@pytest.mark.long
def test_all_memory_is_gone_and_the_scripts_own_checkpoint_is_taken(pair, undisturbed, tmp_path):
    """It saves its model only, asynchronously; what that lacks went along, so even the next batch is the same.

    Its steps are no multiples of the interval, so nothing else would have had them captured and checked.
    """
    loop = pair("--dcp", str(tmp_path / "dcp"), name="durable", policy=f"schema_version = 1\ninterval = 9\n{PUBLISH}")
    loop.start_all("node-1", "node-2")
    loop.wait_for(lambda: max(trusted(loop), default=0) >= 40, "a checkpoint that passed its check", 120)
    power_off(loop, "node-1", "node-2")
    saved = trusted(loop)
    plan = started_again(loop, undisturbed, "node-1", "node-2")
    step = max(saved)
    assert (plan["checkpoint"]["step"], plan["checkpoint"]["trust"]) == (step, "certified")
    assert [(s["tier"], s["holder"]) for s in plan["checkpoint"]["sources"]] == [("durable", saved[step])] * 2
    assert {e["tier"] for e in loop.events("state_restored") if e["generation"] == 1} == {"durable"}
    assert Path(saved[step]).is_dir(), "nobody deletes what is the user's"


@pytest.mark.long
def test_a_checkpoint_that_was_deleted_is_a_rung_with_its_reason(pair, undisturbed, tmp_path):
    loop = pair("--dcp", str(tmp_path / "dcp"), name="deleted")
    loop.start_all("node-1", "node-2")
    loop.wait_for(lambda: len(trusted(loop)) >= 2, "checkpoints that passed their checks", 120)
    power_off(loop, "node-1", "node-2")
    *_, older, newest = sorted(trusted(loop))
    (tmp_path / "dcp" / str(newest) / ".metadata").unlink()
    started_again(loop, undisturbed, "node-1", "node-2")
    failed = loop.events("restore_failed")[0]
    assert (failed["tier"], failed["why"], failed["step"]) == ("durable", "missing", newest)
    taken = next(p for p in loop.plans() if p["from_generation"] == 1)
    assert taken["checkpoint"]["step"] == older
