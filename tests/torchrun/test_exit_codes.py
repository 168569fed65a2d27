"""What a scheduler learns from an agent's end: exit code, last line, and the error file it asked for."""

import json

import pytest

pytestmark = pytest.mark.torchrun


def test_a_halted_run_says_why_in_code_last_line_and_error_file(waiting, tmp_path):
    """The active agent exits with 1 and the reason; the standby, which did nothing wrong, with 0 and no file."""
    loop = waiting(nodes="1:2", nproc=1)
    for number, node in enumerate(("node-1", "node-2"), 1):
        loop.start(node, TORCHELASTIC_ERROR_FILE=str(tmp_path / f"{node}.json"))
        loop.wait_joined(number)
    loop.wait_running(0)
    loop.request("halt")
    assert loop.wait_exit("node-1") == 1, loop.standing()
    assert loop.wait_exit("node-2") == 0, loop.standing()
    assert loop.last_line("node-1") == "lm_resiliency: error: the run was halted: operator_halt"
    assert loop.last_line("node-2") == "lm_resiliency: the run was halted: operator_halt"
    told = json.loads((tmp_path / "node-1.json").read_text())
    assert told["message"]["message"] == "RunEnded: the run was halted: operator_halt"
    assert not (tmp_path / "node-2.json").exists()
    for node, code in (("node-1", 1), ("node-2", 0)):
        loop.start(node)  # by a supervisor that does not know better
        assert loop.wait_exit(node) == code, loop.standing()
        assert f"run {loop.run_id!r} is closed: " in loop.last_line(node)
        assert "operator_halt" in loop.last_line(node)


def test_a_run_that_succeeds_is_0_for_all_and_leaves_no_error_file(waiting, tmp_path):
    loop = waiting(nodes="1:2", nproc=1)
    for number, node in enumerate(("node-1", "node-2"), 1):
        loop.start(node, TORCHELASTIC_ERROR_FILE=str(tmp_path / f"{node}.json"))
        loop.wait_joined(number)
    loop.wait_running(0)
    loop.finish_well("node-1", "node-2")
    assert list(tmp_path.glob("*.json")) == []


def test_a_refused_agent_says_why_in_its_error_file(waiting, tmp_path):
    loop = waiting(nodes="1:1", nproc=1, conf={"lm_resiliency_worker_confg": "typo.toml"}, policy="")
    loop.start("node-1", TORCHELASTIC_ERROR_FILE=str(tmp_path / "error.json"))
    assert loop.wait_exit("node-1") == 1, loop.standing()
    told = json.loads((tmp_path / "error.json").read_text())["message"]["message"]
    assert told.startswith("RunEnded: --rdzv-conf: unknown key 'lm_resiliency_worker_confg'; allowed: ")
    assert loop.last_line("node-1") == f"lm_resiliency: error: {told.removeprefix('RunEnded: ')}"
