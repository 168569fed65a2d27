"""Where a replacement finds its shard, a vault that dies, the memory of all copies; other losses are in `failures`."""

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


def captured(loop, slot):
    """Steps of a slot that were captured."""
    return {e["step"] for e in loop.events("checkpoint_captured") if e["slot"] == slot}


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


@pytest.mark.long
def test_a_standby_whose_vault_does_not_start_gives_way_to_the_next(pair, undisturbed, tmp_path):
    """It cannot restore, and says so by leaving; no copy is blamed for it, and the same step is restored elsewhere."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'lmr.integrations.gemini.vault' in sys.orig_argv:\n    os.kill(os.getpid(), 9)\n"
    )
    loop = pair(nodes="2:3")
    loop.start_all("node-1", "node-2")
    loop.start("node-3", PYTHONPATH=str(tmp_path))
    loop.wait_joined(3)
    wait_replicated(loop, 1, "node-1", loop.step() + 10)
    loop.kill_machine("node-2")
    assert loop.wait_exit("node-3", 120) == 1
    assert "this node's vault does not start, so it cannot restore" in loop.agents["node-3"].text().splitlines()[-1]
    loop.start("node-2")
    finishes(loop, undisturbed, "node-1", "node-2")
    assert [r for _, r in loop.told()] == ["initial_placement", "node_lost", "no_standby", "node_left"]
    assert loop.plans()[1]["checkpoint"]["step"] == loop.plans()[3]["checkpoint"]["step"]
    assert not loop.events("restore_failed")


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


def test_a_vault_that_died_is_no_incident_and_its_next_holds_replicas_again(pair, undisturbed):
    """Its peers are told where the new one listens, and it is not asked for a state that was loaded before.

    The trainers beside it go on, hand their captures to the new one, and can be restored from these.
    """
    loop = pair("--step-s", "0.1", name="vault")
    loop.start_all("node-1", "node-2")
    wait_replicated(loop, 0, "node-2", 10)
    os.kill(max(loop.trainers("node-2").items())[1], signal.SIGKILL)
    loop.wait_resumed(1, 120)
    died = loop.vault("node-2")
    os.kill(died, signal.SIGKILL)
    loop.wait_for(lambda: "vault_lost" in {e["why"] for e in loop.events("checkpoint_dropped")}, "the loss", 60)
    loop.wait_for(lambda: vaults(loop, "node-2") - {died}, "the next vault", 60)
    before = max(loop.step(), max(captured(loop, 1)))
    loop.wait_for(lambda: max(captured(loop, 1)) > before, "a capture in the next vault", 120)
    wait_replicated(loop, 1, "node-1", before + 1)
    wait_replicated(loop, 0, "node-2", before + 1)
    assert len(loop.plans()) == 2, "nothing is decided for it"
    os.kill(max(loop.trainers("node-2").items())[1], signal.SIGKILL)
    loop.wait_resumed(2, 120)
    checkpoint = loop.plans()[2]["checkpoint"]
    assert checkpoint["step"] > before
    assert [(s["holder"], s["tier"]) for s in checkpoint["sources"]] == [("node-1", "memory"), ("node-2", "memory")]
    finishes(loop, undisturbed, "node-1", "node-2")
    said = loop.agents["node-2"].text()
    assert [said.count(f"lmr: rank 1: vault: {what}") for what in ("the vault", "it is back")] == [1, 1], said
    agent = [line for line in said.splitlines() if "what=vault" in line]
    assert [sum(what in line for line in agent) for what in ("protection_degraded", "protection_back")] == [1, 1], said
    assert [plan["action"] for plan in loop.plans()] == ["start", "restart", "restart"]
    assert not loop.events("restore_failed")


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
