"""State or data of one rank goes wrong: SCOUT names the machine, and the others go on from sound state."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.torchrun

SCRIPT = Path(__file__).parent / "scripts" / "damaged_training.py"
POLICY = """\
schema_version = 1
[recovery]
publish_ms = 100
[replay]
compare_state = {compare}
[replay.pulse]
report_ms = 100
[replay.continuity]
enabled = {continuity}
"""
STEPS, DAMAGED = 90, 45


def finals(loop) -> list[list[str]]:
    """Parameters and optimizer state of every rank at the end."""
    ranks = range(int(loop.nodes.split(":")[0]) * loop.nproc)
    return [[e["state"] for e in loop.entries(rank) if "finished" in e][-1] for rank in ranks]


def damaged(job, sharding: str, nodes: int, victim: int, policy: str, fault: str = "--damage"):
    """A run with a standby in which a bit flips, say; its end must be that of a run nothing happened to."""
    script = ["--steps", str(STEPS), "--sharding", sharding]
    alone = {"nodes": "1", "nproc": nodes, "backend": "c10d", "policy": ""}
    plain = job(*script, "--step-s", "0", script=SCRIPT, name="plain", **alone)
    plain.start("alone")
    assert plain.wait_exit("alone", 120) == 0, plain.standing()
    loop = job(
        *script,
        fault,
        f"{victim}:{DAMAGED}",
        script=SCRIPT,
        nodes=f"{nodes}:{nodes + 1}",
        nproc=1,
        policy=policy,
    )
    names = [f"node-{number}" for number in range(1, nodes + 2)]
    loop.start_all(*names)
    loop.wait_resumed(1, 200)
    bad = names[victim]
    for name in names:
        if name != bad:
            assert loop.wait_exit(name, 120) == 0, loop.standing()
    plan = loop.plans()[1]
    assert (plan["action"], plan["cause"]["kind"], plan["cause"]["nodes"]) == ("replace", "sdc", [bad]), plan
    assert plan["cause"]["ranks"] == [victim]
    assert plan["cause"]["confidence"] == "attributed"
    assert names[-1] in {a["node"] for a in plan["assignments"]}
    assert plan["checkpoint"]["trust"] == "certified", plan
    assert 0 < plan["checkpoint"]["step"] < DAMAGED, plan
    assert bad in plan["quarantined"]
    assert [p["action"] for p in loop.plans()] == ["start", "replace"]
    assert finals(loop) == finals(plain), "bit for bit"
    return loop


@pytest.mark.long  # the demo shows it, too
def test_a_flipped_bit_in_one_of_three_replicas_is_named_by_the_other_two(job):
    """Replicas that must be equal are not: the minority is replaced."""
    loop = damaged(job, "none", 3, 1, POLICY.format(compare="true", continuity="false"))
    assert {tuple(d["ranks"]) for d in loop.events("state_diverged")} == {(1,)}


@pytest.mark.long
def test_a_flipped_bit_in_one_of_two_replicas_is_named_by_its_own_continuity(job):
    """Two that differ cannot say who is right; the one whose state changed while nobody wrote to it can be named."""
    loop = damaged(job, "none", 2, 1, POLICY.format(compare="true", continuity="true"))
    checks = [c for c in loop.events("replay_checked") if c["verdict"] != "clean"]
    assert [(c["recipe"], c["verdict"], c["ranks"], c["step"]) for c in checks] == [
        ("continuity", "corrupt", [1], DAMAGED - 1)
    ]


@pytest.mark.long
def test_a_flipped_bit_in_a_part_only_one_rank_holds_is_found_without_a_peer(job):
    """Fully sharded: nobody else has this part, so nobody could have compared it."""
    loop = damaged(job, "full", 2, 1, POLICY.format(compare="true", continuity="true"))
    checks = [c for c in loop.events("replay_checked") if c["recipe"] == "continuity"]
    assert [(c["verdict"], c["ranks"], c["step"]) for c in checks] == [("corrupt", [1], DAMAGED - 1)]
    assert loop.events("state_diverged") == []


@pytest.mark.long
def test_a_batch_left_out_by_the_sampler_of_one_of_two_is_found_by_that_rank(job):
    """All replicas take the step with the wrong gradients and stay equal; no state shows it."""
    loop = damaged(job, "none", 2, 1, POLICY.format(compare="true", continuity="true"), fault="--skip")
    checks = [c for c in loop.events("replay_checked") if c["verdict"] != "clean"]
    assert [(c["recipe"], c["verdict"], c["ranks"], c["step"]) for c in checks] == [
        ("batches", "corrupt", [1], DAMAGED)
    ]
    assert loop.events("state_diverged") == []
