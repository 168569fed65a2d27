"""What the verbs say about the recorded incidents: explanations as prose, counterfactuals, differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import CORPUS, Replay

from lmr.engine.reasons import CLOSE_REASONS, PLAN_REASONS, REJECTED_REASONS
from lmr.replay_tool.reasons import because

RECORDED = sorted(CORPUS.glob("*.jsonl"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_explanation_reads_as_reviewed(path: Path, replay: Replay) -> None:
    """The last plan of each incident is told word for word as it was reviewed (`record_corpus.py` writes it)."""
    told = replay("explain", path).out
    assert told == path.with_suffix(".txt").read_text("utf-8")


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_plan_can_be_told(path: Path, replay: Replay) -> None:
    """Each plan of each log: its facts, its rule, its state, and every rejected alternative with a reason in words."""
    plans = [json.loads(line)["data"]["plan"] for line in path.read_text().splitlines() if '"plan_committed"' in line]
    for plan in plans:
        told = replay("explain", path, plan["plan_id"], "--json").json
        assert {item["option"] for item in told["rejected"]} == {item["option"] for item in plan["rejected"]}
        assert [item["seq"] for item in told["facts"]] == sorted(plan["evidence"])
        assert not [item for item in told["rejected"] if "does not know" in item["text"]]
        assert told["rule"]
        assert told["state"]


def test_every_reason_code_has_words() -> None:
    for code in (*PLAN_REASONS, *REJECTED_REASONS, *CLOSE_REASONS):
        assert "does not know" not in because(code)
    assert "does not know" in because("cosmic_rays")


@pytest.mark.parametrize(
    ("log", "option", "said"),
    [
        ("node-loss", "restart", "the node's life has ended"),
        ("node-loss", "node-6", "another standby joined earlier"),
        ("node-loss", "node-1", "It is in the plan: node-1 has slot 0"),
        ("node-loss", "node-2", "node-2 was gone"),
        ("node-loss", "step=100", "older than step 110"),
        ("node-loss", "step=110", "It is the step the plan restores"),
        ("node-loss", "step=55", "No copy of step 55 was known"),
        ("node-loss", "halt", "the run can go on"),
        ("node-loss", "hold", "every slot could be filled"),
        ("sdc-attributed", "step=1250", "at or above the first bad one"),
        ("process-crash", "replace", "node-2 had been blamed 0 times before"),
        ("process-crash", "node-5", "gives no slot to another node"),
        ("lemon-node", "restart", "node-3 had been blamed 2 times before"),
        ("hold-then-halt", "replace", "Free standbys at that moment: none"),
        ("straggler", "replace", "It is what was done"),
    ],
)
def test_why_not(log: str, option: str, said: str, replay: Replay) -> None:
    """The plan's own reason is quoted; everything else is answered from the state before it."""
    told = replay("explain", CORPUS / f"{log}.jsonl", "last", "--why-not", option, "--json").json["why_not"]
    assert said in " ".join(told[0]["answer"])


def test_why_not_a_node_that_joined_later(replay: Replay) -> None:
    words = ("explain", CORPUS / "node-loss.jsonl", "generation:0", "--why-not", "node-6", "--json")
    assert "had not joined" in replay(*words).json["why_not"][0]["answer"][0]


@pytest.mark.parametrize("which", ["last", "incident:2", "generation:1", "seq:35"])
def test_a_plan_can_be_named_in_many_ways(which: str, replay: Replay) -> None:
    assert replay("explain", CORPUS / "node-loss.jsonl", which, "--json").json["seq"] == 35


def test_timeline_knows_phases_and_costs(replay: Replay) -> None:
    """Detected, decided, workers up, restored, resumed: each with its time, from the recorded clock."""
    found = replay("timeline", CORPUS / "node-loss.jsonl", "--json").json
    (incident,) = found["incidents"]
    assert incident["lengths_ms"] == {
        "decided": 553,
        "workers_up": 1060,
        "restored": 480,
        "resumed": 350,
        "total": 2443,
    }
    assert (incident["lost_steps"], incident["standbys_used"], incident["nodes"]) == (7, 1, ["node-2"])
    assert found["outcome"] == "succeeded"
    roles = {node["node"]: [span["role"] for span in node["spans"]] for node in found["nodes"]}
    assert roles["node-2"] == ["standby", "active"]
    assert roles["node-5"] == ["standby", "active"]
    assert roles["node-6"] == ["standby"]


def test_timeline_of_one_node_leaves_the_others_out(replay: Replay) -> None:
    found = replay("timeline", CORPUS / "lemon-node.jsonl", "--node", "node-3", "--json").json
    assert [incident["incident"] for incident in found["incidents"]] == [2, 3, 4]
    assert [node["node"] for node in found["nodes"]] == ["node-3"]
    assert all("node-3" in (*fact["nodes"], fact["source"]) for fact in found["facts"])


def test_timeline_since(replay: Replay) -> None:
    """Only what was recorded from then on."""
    found = replay("timeline", CORPUS / "lemon-node.jsonl", "--since", "90s", "--json").json
    assert [incident["incident"] for incident in found["incidents"]] == [4]
    assert min(fact["at_ms"] for fact in found["facts"]) >= found["end_ms"] - 90_000


def test_state_at_a_seq(replay: Replay) -> None:
    """The state while the incident is open: its facts, its deadline, and no plan yet."""
    found = replay("state", CORPUS / "process-crash.jsonl", "--at", 25, "--json").json
    assert found["generation"] == 0
    assert found["incident"]["facts"][0]["kind"] == "crash"
    assert found["deadlines"][0][0] == "settle:2"
    later = replay("state", CORPUS / "process-crash.jsonl", "--json").json
    assert (later["generation"], later["incident"], later["closed"]) == (1, None, "succeeded")


def policy(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(f"schema_version = 1\n[recovery]\n{text}\n")
    return path


def test_whatif_with_the_same_policy_changes_nothing(tmp_path: Path, replay: Replay) -> None:
    """Every recorded incident under the default policy: all decisions the same in every word."""
    for path in RECORDED:
        if path.stem == "hold-then-halt":
            continue  # it was recorded under a policy of its own
        ran = replay("whatif", path, "--policy", policy(tmp_path, ""), "--json")
        (found,) = ran.json["logs"]
        assert (ran.code, found["change"], found["same"]) == (0, None, found["decisions"]), path


def test_whatif_names_the_first_change_and_stops(tmp_path: Path, replay: Replay) -> None:
    """A policy that replaces at the first crash: the first crash changes, and behind it nothing is known."""
    ran = replay(
        "whatif", CORPUS / "lemon-node.jsonl", "--policy", policy(tmp_path, "restarts_before_replace = 0"), "--json"
    )
    (found,) = ran.json["logs"]
    assert ran.code == 1
    assert found["policy_changes"] == {"restarts_before_replace": [2, 0]}
    assert (found["change"]["recorded"]["action"], found["change"]["instead"]["action"]) == ("restart", "replace")
    assert found["change"]["instead"]["standbys_used"] == 1
    assert found["change"]["instead"]["recovery_ms"] == found["change"]["recorded"]["recovery_ms"]
    assert (found["change"]["seq"], found["unknown_from_seq"], found["not_judged"]) == (24, 24, 3)


def test_whatif_a_later_decision_with_the_same_effect_is_no_change(tmp_path: Path, replay: Replay) -> None:
    """Another settle time moves the decision, and does the same."""
    for settle_ms in (0, 100, 390):
        ran = replay(
            "whatif", CORPUS / "process-crash.jsonl", "--policy", policy(tmp_path, f"settle_ms = {settle_ms}"), "--json"
        )
        (found,) = ran.json["logs"]
        assert (ran.code, found["change"]) == (0, None), settle_ms


def test_whatif_without_a_fact(replay: Replay) -> None:
    """Without the loss, nothing would have been decided yet: the engine would wait, and the rest is unknown."""
    ran = replay("whatif", CORPUS / "node-loss.jsonl", "--without", 34, "--json")
    change = ran.json["logs"][0]["change"]
    assert change["recorded"]["action"] == "replace"
    assert change["instead"] is None
    assert change["waits_for"].startswith("confirm:2")
    assert "Unknown from here" in replay("whatif", CORPUS / "node-loss.jsonl", "--without", 34).out


def test_whatif_over_a_folder(tmp_path: Path, replay: Replay) -> None:
    """A table of all logs with sums; a file that is no log is reported and passed over."""
    text = policy(tmp_path, "straggler_windows = 50\nrestarts_before_replace = 0")
    logs = tmp_path / "logs"
    logs.mkdir()
    for path in RECORDED:
        (logs / path.name).write_bytes(path.read_bytes())
    (logs / "readme").write_text("no log")
    ran = replay("whatif", logs, "--policy", text, "--json")
    changed = {Path(item["where"]).stem for item in ran.json["logs"] if item["change"]}
    assert changed == {"straggler", "process-crash", "lemon-node", "hold-then-halt", "restore-ladder"}
    assert (ran.code, ran.json["changed"], ran.json["unreadable"]) == (2, 5, 1)
    assert "5 of 19 logs change" in replay("whatif", logs, "--policy", text).out


def test_bisect_finds_what_a_decision_hangs_on(replay: Replay) -> None:
    """The loss flipped it; without the loss, the copy on node-3 or the check of step 110 it would have been another."""
    found = replay("bisect", CORPUS / "node-loss.jsonl", "incident:2", "--json").json
    assert found["flipped_by"]["text"] == "node-2 was lost: lease_expired"
    assert found["single"]
    assert found["complete"]
    texts = {item["text"]: item["instead"] for item in found["smallest"]}
    assert texts["node-5 joined (incarnation node-5/1, 10.0.0.5:29500)"].endswith(
        "(slot 1 to node-6 instead of node-5)"
    )
    assert "from step 100" in texts["replay check 'hidden' of step 110: clean"]
    assert "from step 100" in texts["node-3 holds a verified replica of slot 1, step 110"]


def test_bisect_finds_a_set_when_no_single_fact_decides(replay: Replay) -> None:
    """Eight echoes: any one may be missing, so the smallest set is more than one fact."""
    found = replay("bisect", CORPUS / "communication.jsonl", "incident:2", "--json").json
    cited = [item["text"] for item in found["smallest"]]
    singles_are_about_the_step = all("step 50" in text for text in cited)
    assert found["single"] == singles_are_about_the_step
    assert found["flipped_by"] is not None


def test_bisect_stops_at_its_limit(replay: Replay) -> None:
    found = replay("bisect", CORPUS / "node-loss.jsonl", "--limit", 3, "--json").json
    assert not found["complete"]
    assert found["replays"] <= 10


def test_diff_of_two_logs(replay: Replay) -> None:
    """The first record that differs, with the field; then the decisions side by side."""
    ran = replay("diff", CORPUS / "sdc-attributed.jsonl", CORPUS / "device-failure.jsonl", "--json")
    assert ran.code == 1
    assert ran.json["common_records"] == 12
    assert ran.json["first_field"][0] == "at_ms" or ran.json["first_field"][0].startswith("data")
    assert [pair["same"] for pair in ran.json["decisions"]] == [True, False, True]
    same = replay("diff", CORPUS / "desync.jsonl", CORPUS / "desync.jsonl")
    assert (same.code, same.out.splitlines()[-1]) == (0, "no difference")


def test_diff_of_two_points(replay: Replay) -> None:
    found = replay("diff", CORPUS / "node-loss.jsonl", "--at", 30, "--at", 36, "--json").json
    changes = {item["what"]: (item["a"], item["b"]) for item in found["state"]}
    assert changes["generation"] == (0, 1)
    assert changes["node node-2 role"] == ("active", "gone")
    assert [line["seq"] for line in found["between"]] == [31, 32, 33, 34, 35, 36]


def test_decide_prints_one_line_a_decision(tmp_path: Path, replay: Replay) -> None:
    """`after` counts facts; the plan is whole; the log written by --into verifies and equals the recorded one."""
    facts = tmp_path / "facts.jsonl"
    replay("export", CORPUS / "node-loss.jsonl", "--format", "facts", "-o", facts)
    ran = replay("decide", facts, "--json", "--into", tmp_path / "run.db")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [(line["after"], line["type"]) for line in lines] == [
        (5, "plan_committed"), (32, "plan_committed"), (54, "run_closed"),
    ]  # fmt: skip
    assert lines[1]["plan"]["assignments"][1]["node"] == "node-5"
    assert lines[2]["data"] == {"outcome": "succeeded", "reason": "workers_finished"}
    assert replay("verify", tmp_path / "run.db").code == 0
    assert replay("diff", tmp_path / "run.db", CORPUS / "node-loss.jsonl", "--json").json["decisions"] == []


def test_decide_under_another_policy(tmp_path: Path, replay: Replay) -> None:
    facts = tmp_path / "facts.jsonl"
    replay("export", CORPUS / "process-crash.jsonl", "--format", "facts", "-o", facts)
    actions = []
    for text in ("", "restarts_before_replace = 0"):
        ran = replay("decide", facts, "--json", "--policy", policy(tmp_path, text))
        actions.append(json.loads(ran.out.splitlines()[1])["plan"]["action"])
    assert actions == ["restart", "replace"]
