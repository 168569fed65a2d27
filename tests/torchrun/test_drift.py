"""A node that is not set up as the others is known from its admission on, and never takes a lost node's place."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.torchrun

WAITING = Path(__file__).parent / "scripts" / "waiting_worker.py"


def test_a_standby_with_another_environment_and_script_is_passed_over(job, tmp_path):
    """Node 3 joins with a variable of its own and after the script was edited; node 4 is as the others were."""
    script = tmp_path / "training.py"
    script.write_bytes(WAITING.read_bytes())
    loop = job(script=script, nodes="2:4", nproc=1)
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    script.write_text(script.read_text() + "# edited on one machine\n")
    loop.start("node-3", NCCL_ALGO="Ring")
    loop.wait_for(lambda: loop.events("config_drifted"), "the drift to be told")
    assert loop.events("config_drifted") == [{"node": "node-3", "keys": ["code", "env.NCCL_ALGO"]}]
    script.write_bytes(WAITING.read_bytes())
    loop.start("node-4")
    loop.wait_joined(4)
    loop.kill_machine("node-2")
    loop.wait_running(1)
    assert loop.active() == ["node-1", "node-4"]
    assert {e["node"] for e in loop.events("config_drifted")} == {"node-3"}
    loop.finish_well("node-1", "node-3", "node-4")


@pytest.mark.long
def test_a_switched_off_detector_says_nothing(job):
    """`drift.enabled = false`, and another variable."""
    policy = "schema_version = 1\n[replay.drift]\nenabled = false\n"
    loop = job(script=WAITING, nodes="2", nproc=1, policy=policy)
    loop.start("node-1")
    loop.wait_joined(1)
    loop.start("node-2", NCCL_ALGO="Ring")
    loop.wait_running(0)
    loop.finish_well("node-1", "node-2")
    assert loop.events("config_drifted") == []
