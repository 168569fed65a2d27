"""`lmr status` and `lmr watch` say where a run stands, from its log alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lmr.engine import Record
from lmr.integrations.operate.main import VERBS
from lmr.integrations.operate.main import main as lmr
from lmr.integrations.operate.standing import Follower, Standing
from lmr.replay_tool.main import main as lmr_replay
from lmr.store import open_log

CORPUS = Path(__file__).parents[1] / "replay_tool" / "corpus"


def records(log: str) -> list[Record]:
    with open_log(log, create=False, read_only=True) as opened:
        return list(opened.read(opened.runs()[0]))


def standings(log: str) -> list[Standing]:
    """The standing after each record."""
    follower, found = Follower(), []
    for record in records(log):
        follower.fold(record)
        found.append(follower.standing())
    return found


def test_the_run_is_told_as_it_goes(recorded) -> None:
    """Waiting, starting, training, an incident, recovering, training again, over: each once and in this order."""
    words = [s.state for s in standings(recorded("node-loss"))]
    changes = [word for n, word in enumerate(words) if n == 0 or word != words[n - 1]]
    assert changes == ["waiting for nodes", "starting", "training", "recovering", "training", "succeeded"]


def test_a_node_is_what_the_engine_makes_of_it(recorded) -> None:
    last = standings(recorded("node-loss"))[-1]
    assert {n.node: (n.role, n.slot) for n in last.nodes} == {
        "node-1": ("active", 0),
        "node-2": ("gone, quarantined", None),
        "node-3": ("active", 2),
        "node-4": ("active", 3),
        "node-5": ("active", 1),
        "node-6": ("standby", None),
    }


def test_steps_are_those_the_engine_would_restore(recorded) -> None:
    """At each plan: the certified step shown just before it is the step that the plan restores."""
    log = recorded("node-loss")
    shown = standings(log)
    for n, record in enumerate(records(log)):
        if record.event.type == "plan_committed" and record.event.data.plan.checkpoint is not None:  # type: ignore[union-attr]
            checkpoint = record.event.data.plan.checkpoint  # type: ignore[union-attr]
            if checkpoint.trust == "certified":
                assert shown[n - 1].certified_step == checkpoint.step


def test_replicas_that_are_behind_are_said(recorded) -> None:
    """Between a capture and its replication the replicas are behind; a node that is gone replicates nothing."""
    found = standings(recorded("node-loss"))
    assert {s.replica_lag_steps for s in found} >= {None, 0, 10}
    assert all(s.replicated_step is None or s.replicated_step <= (s.complete_step or 0) for s in found)


@pytest.mark.parametrize(
    ("story", "code", "said"),
    [
        ("node-loss", 0, "node-loss: succeeded (workers_finished)"),
        ("hold-then-halt", 1, "hold-then-halt: halted (no_standby)"),
    ],
)
def test_schedulers_get_an_exit_code(recorded, capsys, story: str, code: int, said: str) -> None:
    assert lmr(["status", recorded(story), "--exit-code"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_json_says_the_same(recorded, capsys) -> None:
    assert lmr(["status", recorded("node-loss"), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["state"], told["generation"], told["recoveries"], told["replica_lag_steps"]) == ("succeeded", 1, 1, 0)


def test_a_run_that_nobody_decides_any_more_is_said(tmp_path, capsys) -> None:
    """The records alone would say `training` for ever after its decider is gone."""
    story = (CORPUS / "node-loss.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "begun.jsonl").write_text("".join(story[:40]))
    log = str(tmp_path / "events.db")
    assert lmr_replay(["import", str(tmp_path / "begun.jsonl"), "--into", log]) == 0

    def said() -> tuple[str, Any]:
        capsys.readouterr()
        assert lmr(["status", log]) == 0
        (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("decided by")]
        assert lmr(["status", log, "--json"]) == 0
        return " ".join(row.split()), json.loads(capsys.readouterr().out)["decider"]

    assert said() == ("decided by nobody", None)
    with open_log(log) as opened:
        lease = opened.acquire_lease("node-loss", holder="node-1/1", address="10.0.0.1:4000", ttl_ms=60_000)
        assert lease is not None
        assert said() == ("decided by node-1 at 10.0.0.1:4000", "node-1")
        opened.release_lease("node-loss", lease.epoch)
    assert said() == ("decided by nobody: the lease of node-1 ended 0 s ago", None)


def test_watch_ends_with_the_run(recorded, capsys) -> None:
    assert lmr(["watch", recorded("node-loss")]) == 0
    assert "succeeded" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["status", "watch"])
def test_several_runs_need_a_name(recorded, capsys, verb: str) -> None:
    log = recorded("node-loss", "straggler")
    assert lmr([verb, log]) == 2
    assert "say --run: node-loss, straggler" in capsys.readouterr().err
    assert lmr([verb, log, "--run", "strangler"]) == 2
    assert "no run 'strangler'; allowed: node-loss, straggler" in capsys.readouterr().err
    assert lmr([verb, log, "--run", "straggler"]) == 0


@pytest.mark.parametrize("words", ["status", "watch", "db archive --through 3 -o x.gz", "halt --why test --log"])
def test_a_log_without_a_run_is_one_line(tmp_path, capsys, words: str) -> None:
    log = f"{tmp_path}/fresh.db"
    open_log(log).close()
    assert lmr([*words.split(), log]) == 2
    assert capsys.readouterr().err == f"lmr {words.split()[0]}: sqlite:///{log} holds no run\n"


def test_archiving_takes_the_run_as_every_verb_does(recorded, tmp_path, capsys) -> None:
    log = recorded("node-loss", "straggler")
    words = ["db", "archive", log, "--through", "20", "-o", str(tmp_path / "old.lmrb.gz")]
    assert lmr(words) == 2
    assert "holds 2 runs; say --run: node-loss, straggler" in capsys.readouterr().err
    assert lmr([*words, "--run", "straggler"]) == 0


@pytest.mark.parametrize("verb", ["watch", "cordon", "uncordon", "replace", "restart", "halt", "resume"])
def test_a_verb_says_what_it_does(capsys, verb: str) -> None:
    with pytest.raises(SystemExit):
        lmr([verb, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert VERBS[verb].lower() in told.lower()


def test_a_log_that_is_not_there_is_one_line(tmp_path, capsys) -> None:
    assert lmr(["status", str(tmp_path / "none.db")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lmr status: ")
    assert "none.db" in line
