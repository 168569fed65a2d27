"""Two ranks, one of which computes wrongly from some step on: an earlier result that both agreed on names it."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.torchrun

SCRIPT = Path(__file__).parent / "scripts" / "damaged_training.py"
POLICY = """\
schema_version = 1
[recovery]
publish_ms = 100
[replay.rerun]
every_steps = 1
seeds = 1
"""


@pytest.mark.long
def test_the_one_of_two_that_computes_wrongly_is_replaced(job):
    """The wrong sums are averaged into both replicas, so no comparison of state can see them."""
    loop = job("--steps", "120", "--wrong", "1:40", script=SCRIPT, nodes="2:3", nproc=1, policy=POLICY)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_resumed(1, 200)
    assert loop.wait_exit("node-1", 120) == 0, loop.standing()
    assert loop.wait_exit("node-3", 120) == 0, loop.standing()
    plan = loop.plans()[1]
    assert (plan["action"], plan["cause"]["kind"], plan["cause"]["nodes"]) == ("replace", "sdc", ["node-2"]), plan
    corrupt = [c for c in loop.events("replay_checked") if c["verdict"] == "corrupt"]
    assert {tuple(c["ranks"]) for c in corrupt} == {(1,)}, corrupt
    assert corrupt[0]["step"] >= 40
    assert loop.events("state_diverged") == []
    clean = {c["recipe"] for c in loop.events("replay_checked") if c["verdict"] == "clean"}
    assert clean & {"0.module.0", "0.module.2", "optimizer.0"}, "kept steps that were checked are told"
