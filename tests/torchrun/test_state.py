"""What becomes of captured state through the front door: real torchrun agents, real kills."""

import os
import signal

import pytest

pytestmark = pytest.mark.torchrun


def test_state_full_of_nan_is_captured_and_never_certified(job):
    """Every replica holds the same not-a-number, so digests agree; the newest finite step is what comes back."""
    loop = job("--steps", "120", "--poison-at", "60", nodes="2:2", nproc=1)
    loop.start_all("node-1", "node-2")
    spoiled = "a check to find the state not finite"
    loop.wait_for(lambda: any(e["verdict"] == "inconclusive" for e in loop.events("replay_checked")), spoiled, 120)
    os.kill(loop.trainers("node-2")[1], signal.SIGKILL)
    plan = loop.wait_plan(2, 120)
    assert loop.wait_exit("node-1", 120) == 0, loop.standing()
    assert loop.wait_exit("node-2", 120) == 0, loop.standing()
    odd = next(e for e in loop.events("replay_checked") if e["verdict"] == "inconclusive")
    assert (odd["recipe"], odd["ranks"], odd["generation"]) == ("state_finite", [0, 1], 0)
    assert odd["step"] >= 60
    captured = {e["step"] for e in loop.events("checkpoint_captured") if e["generation"] == 0}
    assert odd["step"] in captured
    checkpoint = plan["checkpoint"]
    assert 0 < checkpoint["step"] < 60
    assert checkpoint["trust"] == "certified"
    passed_over = {r["option"]: r["reason"] for r in plan["rejected"]}
    assert passed_over[f"step {odd['step']}"] == "not_certified"
    last = [entry for entry in loop.entries(0) if "finished" in entry]
    assert len(last) == 1
