"""What an operator says to a run that trains, by the `lmr` command: recorded, acted on, and answered truthfully."""

import json

import pytest

from lmr.integrations.operate.main import main as lmr

pytestmark = pytest.mark.torchrun


@pytest.fixture
def say(capsys):
    """Runs one verb against a job's log; its exit code and the last line of what it said."""

    def run(loop, verb, *words, why="the fan is loud"):
        capsys.readouterr()
        try:
            code = lmr([verb, *words, "--why", why, "--by", "ada", "--log", str(loop.event_log)])
        except SystemExit as ended:
            code = ended.code
        said = capsys.readouterr()
        return code, (said.err or said.out).splitlines()[-1]

    return run


def test_every_verb_is_recorded_and_does_what_it_says(waiting, say, capsys):
    """One night of an operator: a standby kept out, a hold, a replacement, a restart, the end."""
    loop = waiting(nodes="2:4", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    assert say(loop, "resume") == (1, "lmr resume: nothing follows from it: the run does not hold")
    assert say(loop, "cordon", "node-3")[0] == 0
    loop.kill_machine("node-2")
    assert loop.wait_plan(2)["action"] == "hold"
    code, line = say(loop, "resume")
    assert (code, line.split(": ")[1]) == (1, "nothing follows from it")
    assert "no standby" in line
    assert say(loop, "uncordon", "node-3")[0] == 0
    loop.wait_running(1)
    assert loop.active() == ["node-1", "node-3"]

    assert say(loop, "replace", "node-3") == (
        1,
        "lmr replace: nothing follows from it: no standby is free to take the slot of node-3",
    )
    assert say(loop, "replace", "node-9") == (
        1,
        "lmr replace: nothing follows from it: node-9 does not train; active: node-1, node-3",
    )
    loop.start_all("node-4")
    assert say(loop, "replace", "node-3")[0] == 0
    loop.wait_running(2)
    assert loop.active() == ["node-1", "node-4"]
    assert say(loop, "restart")[0] == 0
    loop.wait_running(3)
    assert loop.told()[-2:] == [("replace", "operator"), ("restart", "operator")]
    assert say(loop, "uncordon", "node-4") == (1, "lmr uncordon: nothing follows from it: node-4 was not kept out")
    assert say(loop, "cordon", "node-4") == (
        0,
        "lmr cordon: node-4 trains on; `lmr replace` has a standby take its slot",
    )
    code, line = say(loop, "cordon", "nod-1")
    assert code == 0
    assert line.startswith("lmr cordon: no node 'nod-1' has joined yet; known: node-1, node-2, node-3, node-4")
    assert lmr(["status", str(loop.event_log), "--json"]) == 0
    standing = json.loads(capsys.readouterr().out)
    assert standing["decider"] == "node-1"
    roles = {node["node"]: node["role"] for node in standing["nodes"]}
    assert roles == {
        "nod-1": "not seen, cordoned",
        "node-1": "active",
        "node-2": "gone, quarantined",
        "node-3": "standby, cordoned",
        "node-4": "active, cordoned",
    }

    assert say(loop, "halt")[0] == 0
    assert [loop.wait_exit(node) for node in ("node-1", "node-3", "node-4")] == [1, 0, 1], loop.standing()
    assert {(e["by"], e["why"]) for kind in ("node_cordoned", "node_uncordoned", "operator_requested")
            for e in loop.events(kind)} == {("ada", "the fan is loud")}  # fmt: skip
    code, line = say(loop, "restart")
    assert (code, line) == (2, f"lmr restart: nobody decides for run {loop.run_id!r} at the moment")


def test_what_cannot_be_said_is_one_line_and_records_nothing(waiting, say, monkeypatch, tmp_path):
    """No reason, no secret, another secret: exit code 2, and what to mend."""
    loop = waiting(nodes="1:1", nproc=1)
    loop.start_all("node-1")
    loop.wait_running(0)
    before = len(loop.records())
    assert say(loop, "halt", why=" ") == (2, "lmr halt: error: argument --why: is empty; allowed: a reason in words")
    monkeypatch.setenv("LM_RESILIENCY_SECRET_FILE", "/nowhere/secret")
    assert say(loop, "halt") == (
        2,
        "lmr halt: LM_RESILIENCY_SECRET_FILE: cannot read /nowhere/secret: No such file or directory",
    )
    (tmp_path / "secret").write_text("a secret of another run, which is not this one's")
    monkeypatch.setenv("LM_RESILIENCY_SECRET_FILE", str(tmp_path / "secret"))
    code, line = say(loop, "halt")
    assert code == 2
    assert "is LM_RESILIENCY_SECRET_FILE the run's?" in line
    monkeypatch.delenv("LM_RESILIENCY_SECRET_FILE")
    (loop.folder / "decider.json").rename(tmp_path / "decider.json")
    code, line = say(loop, "halt")
    assert (code, "set LM_RESILIENCY_SECRET_FILE, or run this where" in line) == (2, True), line
    assert len(loop.records()) == before
    loop.finish_well("node-1")
