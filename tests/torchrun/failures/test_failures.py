"""Every failure in every way to train: real torchrun agents, real kills, and the result equal bit by bit.

The training is docs/examples/pytorch_parallel.py, unmodified. What a test has shown goes into the table of
docs/state.md, see failure_table.py.
"""

import contextlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from failure_table import MODES

# Several lives of a run, also on a busy machine.
pytestmark = [pytest.mark.torchrun, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_and_two_machines_lost_in_a_row(drill, mode):
    run = drill(mode)
    run.wait_safe()
    run.crash()
    crash = run.recovered()
    run.wait_safe()
    run.lose()
    loss = run.recovered()
    run.lose()  # the replacement, as soon as it trains
    losses = run.recovered()
    run.ends_equal()
    assert [p["action"] for p in (crash, loss, losses)] == ["restart", "replace", "replace"]
    assert [p["cause"]["kind"] for p in (crash, loss, losses)] == ["process_crash", "node_loss", "node_loss"]
    run.note(crash=crash, loss=loss, losses=losses)


@pytest.mark.parametrize("mode", MODES)
def test_losses_at_bad_moments(drill, mode):
    """Each time nothing can be copied or restored, because the other machines' vaults are stopped."""
    run = drill(mode)
    run.wait_safe()
    with run.others_vaults_stopped():
        run.job.train_until(run.job.step() + 5, 120)
        newest = max(e["step"] for e in run.job.events("checkpoint_replicated") if e["slot"] == run.slot)
        run.lose()
    replication = run.recovered()
    assert replication["checkpoint"]["step"] <= newest

    run.rejoin()
    run.wait_safe()
    with run.others_vaults_stopped():
        generation = run.lose_until_placed()
        standby = run.lose()
    promoted = run.recovered()
    assert standby not in {e["node"] for e in run.job.events("state_restored") if e["generation"] == generation}

    run.rejoin()
    run.wait_safe()
    with run.others_vaults_stopped():
        generation = run.lose_until_placed()
        began = {"generation": generation, "node": run.victim}
        run.job.wait_for(lambda: began in run.job.events("generation_started"), "the replacement's start", 120)
        replacement = run.lose()
    restore = run.recovered()
    assert replacement not in {e["node"] for e in run.job.events("state_restored") if e["generation"] == generation}
    run.ends_equal()
    run.note(replication=replication, promoted=promoted, restore=restore)


def flip_a_byte(memory, _size):
    memory.seek(64)
    was = memory.read(1)
    memory.seek(64)
    memory.write(bytes([was[0] ^ 1]))


def fill_with_nan(memory, size):
    memory.write(b"\x00\x00\xc0\x7f" * (size // 4))


def damage_replicas(run, node, how):
    """In the memory of a machine's vault, where only copies of others lie."""
    damaged = set()
    for fd in Path(f"/proc/{run.job.vault(node)}/fd").iterdir():
        with contextlib.suppress(OSError):
            name = str(fd.readlink())
            if "memfd:lmr-vault" in name and name not in damaged:
                with fd.open("r+b") as memory:
                    how(memory, fd.stat().st_size)
                damaged.add(name)
    assert damaged


@pytest.mark.parametrize("mode", MODES)
def test_nvrx_349_megatron_5281_a_damaged_replica_is_refused_and_the_next_one_taken(drill, mode):
    """The promoted standby's own copy is damaged: digest_mismatch in the log, and another machine's copy is fetched."""
    run = drill(mode)
    shown = {}
    for name, how in (("flipped", flip_a_byte), ("nan_replica", fill_with_nan)):
        run.rejoin()
        run.wait_safe()
        newest = run.stop_training()  # nothing newer comes while memory is damaged
        standby = next(n for n in run.standbys if n in run.holders(newest))
        damage_replicas(run, standby, how)
        failures = len(run.job.events("restore_failed"))
        run.lose()
        shown[name] = plan = run.recovered()
        failed = run.job.events("restore_failed")[failures]
        assert (failed["why"], failed["holder"], failed["tier"]) == ("digest_mismatch", standby, "replica")
        assert plan["checkpoint"]["step"] == failed["step"] == newest
        assert plan["checkpoint"]["sources"][run.slot]["holder"] != standby
        assert any(r["reason"] == "digest_mismatch" for r in plan["rejected"])
    run.ends_equal()
    run.note(**shown)


@pytest.mark.parametrize("mode", MODES)
def test_state_that_is_not_a_number_is_never_certified(drill, mode):
    """Captures are full of it from step 20 on; the newest finite step is what comes back after a crash."""
    run = drill(mode, standbys=0, poison_from=20)

    def spoiled():
        return [e for e in run.job.events("replay_checked") if e["verdict"] == "inconclusive"]

    run.job.wait_for(lambda: bool(spoiled()), "a check to find state that is not finite", 120)
    assert {e["recipe"] for e in spoiled()} == {"state_finite"}
    assert spoiled()[0]["step"] >= 20
    run.crash()
    plan = run.recovered()
    assert plan["checkpoint"]["trust"] == "certified"
    assert plan["checkpoint"]["step"] < 20
    assert (f"step {spoiled()[0]['step']}", "not_certified") in {(r["option"], r["reason"]) for r in plan["rejected"]}
    run.ends_equal()
    run.note(nan_state=plan)


@pytest.mark.parametrize("mode", MODES)
def test_a_full_arena_then_all_memory_is_gone(drill, mode, tmp_path):
    """Replication is stuck and every buffer is needed: captures are skipped, training goes on, a crash finds a step.
    Then all machines lose power; the same command goes on from the script's own checkpoint."""
    run = drill(mode, "--checkpoints", str(tmp_path / "checkpoints"), standbys=1, checkpoint="buffers = 3\n")
    run.wait_safe(1)
    with run.others_vaults_stopped():
        run.job.train_until(run.job.step() + 20, 120)
        run.crash()
    full = run.recovered()
    assert full["checkpoint"]["lost_steps"] >= 15

    def saved():
        """Checkpoints of the script since then, at steps that passed their check."""
        facts = [e for e in run.job.events("checkpoint_persisted") if e["generation"] == run.generation]
        clean = run.checked_clean()
        return {e["step"]: e["checkpoint_id"] for e in facts if e["step"] in clean}

    run.job.wait_for(lambda: bool(saved()), "a checkpoint of the script that passed its check", 120)
    checkpoints = saved()
    nodes = run.alive
    for node in nodes:
        run.job.kill_machine(node)
        run.job.agents[node].process.wait()
    newest = max(checkpoints)
    run.job.start_all(*nodes)
    durable = run.recovered()
    assert (durable["checkpoint"]["step"], durable["checkpoint"]["trust"]) == (newest, "certified")
    assert {(s["tier"], s["holder"]) for s in durable["checkpoint"]["sources"]} == {("durable", checkpoints[newest])}
    run.ends_equal()
    assert len(run.job.events("run_reopened")) == 1
    run.note(full=full, durable=durable)
