"""Losses at every moment between a capture and the step after a restore, all equal bit by bit to no loss at all."""

import contextlib
import hashlib
import os
import signal
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torchrun, pytest.mark.timeout(900)]  # two lives of a run, also on a busy machine


def replicated(loop, slot, holder):
    """Steps of a slot that a node said it holds."""
    return {e["step"] for e in loop.events("checkpoint_replicated") if (e["slot"], e["holder"]) == (slot, holder)}


def wait_replicated(loop, slot, holder, at_least):
    loop.wait_for(lambda: max(replicated(loop, slot, holder), default=0) >= at_least, f"a replica on {holder}", 120)


def vaults(loop, node):
    """Pids of a node's vaults that listen."""
    scope = hashlib.sha256(f"{loop.run_id}\0{node}".encode()).hexdigest()[:16]
    if f"lmr-vault-{scope}" not in Path("/proc/net/unix").read_text():
        return set()
    try:
        return {loop.vault(node)}
    except AssertionError:
        return set()


def finishes(loop, undisturbed, *nodes):
    for node in nodes:
        assert loop.wait_exit(node, 240) == 0, loop.standing()
    loop.assert_same_as(undisturbed)


def flip_a_byte_of_each_replica(loop, node):
    """In the memory of a node's vault, where copies of others lie; returns how many."""
    folder = Path(f"/proc/{loop.vault(node)}/fd")
    flipped = set()
    for fd in folder.iterdir():
        with contextlib.suppress(OSError):
            name = str(fd.readlink())
            if "memfd:lmr-vault" in name and name not in flipped:
                with fd.open("r+b") as memory:
                    memory.seek(64)
                    was = memory.read(1)
                    memory.seek(64)
                    memory.write(bytes([was[0] ^ 1]))
                flipped.add(name)
    return len(flipped)


@pytest.mark.long
def test_a_promoted_standby_finds_its_shard_at_home(pair, undisturbed):
    """The standby had a copy of each slot; nothing has to travel."""
    loop = pair(nodes="2:3")
    loop.start_all("node-1", "node-2", "node-3")
    wait_replicated(loop, 1, "node-3", 30)
    loop.kill_machine("node-2")
    finishes(loop, undisturbed, "node-1", "node-3")
    plan = loop.plans()[1]
    assert [(s["holder"], s["tier"]) for s in plan["checkpoint"]["sources"]] == [
        ("node-1", "memory"),
        ("node-3", "replica"),
    ]
    assert plan["checkpoint"]["step"] >= 30


@pytest.mark.long
def test_two_node_losses_in_a_row(pair, undisturbed):
    loop = pair(nodes="2:4")
    loop.start_all("node-1", "node-2", "node-3", "node-4")
    loop.train_until(40, 120)
    loop.kill_machine("node-2")
    loop.wait_resumed(1, 120)
    replacement = loop.active()[1]
    loop.kill_machine(replacement)
    rest = {"node-3", "node-4"} - {replacement}
    finishes(loop, undisturbed, "node-1", *rest)
    assert [p["action"] for p in loop.plans()] == ["start", "replace", "replace"]
    assert all(p["checkpoint"]["step"] > 0 for p in loop.plans()[1:])


def test_a_vault_that_died_is_no_incident_and_its_next_holds_replicas_again(pair, undisturbed):
    """Its peers are told where the new one listens, and it is not asked for a state that was loaded before."""
    loop = pair("--step-s", "0.1", name="vault")
    loop.start_all("node-1", "node-2")
    wait_replicated(loop, 0, "node-2", 10)
    os.kill(max(loop.trainers("node-2").items())[1], signal.SIGKILL)
    loop.wait_resumed(1, 120)
    died = loop.vault("node-2")
    os.kill(died, signal.SIGKILL)
    loop.wait_for(lambda: "vault_lost" in {e["why"] for e in loop.events("checkpoint_dropped")}, "the loss", 60)
    loop.wait_for(lambda: vaults(loop, "node-2") - {died}, "the next vault", 60)
    os.kill(max(loop.trainers("node-2").items())[1], signal.SIGKILL)
    loop.wait_resumed(2, 120)
    wait_replicated(loop, 0, "node-2", loop.step() + 5)
    finishes(loop, undisturbed, "node-1", "node-2")
    assert [plan["action"] for plan in loop.plans()] == ["start", "restart", "restart"]
    assert not loop.events("restore_failed")


@pytest.mark.long
def test_loss_during_replication(pair, undisturbed):
    """The holder's vault is stopped: the newest steps never reach it. What it had before is what counts."""
    loop = pair(
        nodes="2:3", policy="schema_version = 1\n[checkpoint]\nstandby_slots = 0\n[recovery]\npublish_ms = 50\n"
    )
    loop.start_all("node-1", "node-2", "node-3")
    wait_replicated(loop, 1, "node-1", 20)
    vault = loop.vault("node-1")
    os.kill(vault, signal.SIGSTOP)
    newest = max(replicated(loop, 1, "node-1"))

    def captured_alone():
        return any(e["slot"] == 1 and e["step"] > newest for e in loop.events("checkpoint_captured"))

    loop.wait_for(captured_alone, "a capture that cannot be replicated", 120)
    loop.kill_machine("node-2")
    os.kill(vault, signal.SIGCONT)
    finishes(loop, undisturbed, "node-1", "node-3")
    plan = loop.plans()[1]
    assert 0 < plan["checkpoint"]["step"] <= max(replicated(loop, 1, "node-1"))
    assert plan["checkpoint"]["sources"][1]["tier"] == "replica"


@pytest.mark.long
def test_loss_during_the_restore_and_of_the_standby_while_it_is_promoted(pair, undisturbed):
    """The replacement dies as soon as the plan names it; the next one takes over with the same step or an older one."""
    loop = pair(nodes="2:4")
    loop.start_all("node-1", "node-2", "node-3", "node-4")
    loop.train_until(40, 120)
    loop.kill_machine("node-2")
    loop.wait_plan(2, 60)
    promoted = loop.active()[1]
    loop.kill_machine(promoted)
    last = ({"node-3", "node-4"} - {promoted}).pop()
    finishes(loop, undisturbed, "node-1", last)
    assert loop.plans()[-1]["assignments"][1]["node"] == last
    assert loop.plans()[-1]["checkpoint"]["step"] > 0


@pytest.mark.long
def test_a_replica_with_one_flipped_byte_is_refused_and_the_next_source_taken(pair, undisturbed):
    """The promoted standby's own copy is damaged: digest_mismatch in the log, and the other node's copy is fetched."""
    loop = pair(nodes="2:3")
    loop.start_all("node-1", "node-2", "node-3")
    wait_replicated(loop, 1, "node-3", 30)
    for node, rank in (("node-1", 0), ("node-2", 1)):
        os.kill(loop.trainers(node)[rank], signal.SIGSTOP)  # no newer step comes while bytes are flipped

    def all_the_same():
        captured = {e["step"] for e in loop.events("checkpoint_captured") if e["slot"] == 1}
        return max(captured) == max(replicated(loop, 1, "node-3")) == max(replicated(loop, 1, "node-1"))

    loop.wait_for(all_the_same, "copies of the newest step everywhere", 60)
    assert flip_a_byte_of_each_replica(loop, "node-3") > 0
    loop.kill_machine("node-2")
    finishes(loop, undisturbed, "node-1", "node-3")
    failed = loop.events("restore_failed")[0]
    assert (failed["why"], failed["holder"], failed["tier"]) == ("digest_mismatch", "node-3", "replica")
    plan = loop.plans()[2]
    assert plan["checkpoint"]["step"] == failed["step"]
    assert (plan["checkpoint"]["sources"][1]["holder"], plan["checkpoint"]["sources"][1]["tier"]) == (
        "node-1",
        "replica",
    )
    assert any(r["reason"] == "digest_mismatch" for r in plan["rejected"])


@pytest.mark.long
def test_a_full_arena_stops_no_step_and_loses_no_retained_one(pair, undisturbed):
    """Replication is stuck and every buffer is needed: captures are skipped, training goes on, a crash finds a step."""
    loop = pair(nodes="2:2", policy="schema_version = 1\n[checkpoint]\nbuffers = 3\n[recovery]\npublish_ms = 50\n")
    loop.start_all("node-1", "node-2")
    wait_replicated(loop, 1, "node-1", 10)
    vault = loop.vault("node-2")
    os.kill(vault, signal.SIGSTOP)
    loop.train_until(loop.step() + 50, 120)
    os.kill(vault, signal.SIGCONT)
    os.kill(loop.trainers("node-1")[0], signal.SIGKILL)
    finishes(loop, undisturbed, "node-1", "node-2")
    assert loop.plans()[1]["checkpoint"]["step"] > 0


@pytest.mark.long
def test_the_memory_of_each_node_stays_below_the_bound_it_was_told(pair, undisturbed):
    loop = pair(nodes="2:3")
    loop.start_all("node-1", "node-2", "node-3")
    most = dict.fromkeys(("node-1", "node-2"), 0)

    def sampled():
        for node in most:
            with contextlib.suppress(AssertionError, OSError):
                fds = list(Path(f"/proc/{loop.vault(node)}/fd").iterdir())
                held = {
                    str(fd.readlink()): fd.stat().st_blocks * 512 for fd in fds if "lmr-vault" in str(fd.readlink())
                }
                most[node] = max(most[node], sum(held.values()))
        return loop.step() >= 120

    loop.wait_for(sampled, "step 120", 120)
    finishes(loop, undisturbed, "node-1", "node-2")
    for node, taken_bytes in most.items():
        (said,) = [line for line in loop.agents[node].text().splitlines() if "memory_bound" in line]
        bound_bytes = int(said.split("bound_bytes=")[1].split()[0])
        assert 0 < taken_bytes <= bound_bytes
