"""`verify` finds every kind of damage and says where; a sound log has none."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from conftest import CORPUS, Replay
from stories import STORIES

from lmr.engine.canonical import canonical_bytes
from lmr.engine.events import EVENT_TYPES
from lmr.engine.record import Record, genesis_hash, open_record, record_hash
from lmr.replay_tool.decoding import open_fast
from lmr.replay_tool.jsonl import read_records, record_line

RECORDED = sorted(CORPUS.glob("*.jsonl"))


def test_the_corpus_has_every_story() -> None:
    """A story without a recording, or the reverse, means that somebody forgot `record_corpus.py`."""
    assert {path.stem for path in RECORDED} == set(STORIES)
    assert len(RECORDED) >= 12


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_decisions_are_still_decided(path: Path, replay: Replay) -> None:
    """Every recorded decision is decided again, byte for byte: a rule that changes one needs a new engine version."""
    ran = replay("verify", path, "--json")
    assert ran.json["faults"] == []
    assert ran.code == 0
    assert ran.json["decisions"] >= 2


def chained(bodies: list[dict[str, Any]]) -> list[Record]:
    """Records of these envelopes with a chain made anew: what somebody leaves who owns the table."""
    prev_hash = genesis_hash(bodies[0]["run_id"])
    records = []
    for seq, envelope in enumerate(bodies, start=1):
        body = canonical_bytes({**envelope, "seq": seq})
        records.append(open_record(body, prev_hash, record_hash(prev_hash, body)))
        prev_hash = records[-1].hash
    return records


def envelopes(name: str) -> list[dict[str, Any]]:
    return [json.loads(record.body) for record in read_records(CORPUS / f"{name}.jsonl")]


def written(tmp_path: Path, bodies: list[dict[str, Any]]) -> Path:
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(record_line(record) for record in chained(bodies)), "utf-8")
    return path


def faults(replay: Replay, path: Path, *words: object) -> list[dict[str, Any]]:
    ran = replay("verify", path, "--json", *words)
    assert ran.code == (1 if ran.json["faults"] else 0)
    found: list[dict[str, Any]] = ran.json["faults"]
    return found


def test_a_changed_byte_is_named(tmp_path: Path, replay: Replay) -> None:
    """A body that is not what its hash says: named with its seq, and nothing else is wrong."""
    text = (CORPUS / "node-loss.jsonl").read_text("utf-8").splitlines(keepends=True)
    at = next(i for i, line in enumerate(text) if '"checkpoint_captured"' in line)
    text[at] = text[at].replace('"bytes":3221225472', '"bytes":3221225473')
    path = tmp_path / "flipped.jsonl"
    path.write_text("".join(text), "utf-8")
    assert [(item["seq"], item["kind"]) for item in faults(replay, path)] == [(at + 1, "body_changed")]


def test_a_missing_record_is_named(tmp_path: Path, replay: Replay) -> None:
    """A deleted line breaks the chain and the numbering at the next record."""
    text = (CORPUS / "node-loss.jsonl").read_text("utf-8").splitlines(keepends=True)
    path = tmp_path / "deleted.jsonl"
    path.write_text("".join(text[:19] + text[20:]), "utf-8")
    kinds = {(item["seq"], item["kind"]) for item in faults(replay, path)}
    assert {(21, "seq_gap"), (21, "chain_broken")} <= kinds


def test_a_changed_decision_is_named_with_field_and_values(tmp_path: Path, replay: Replay) -> None:
    """Even when the chain was made anew, a decision that does not follow from the facts is found, with both values."""
    bodies = envelopes("node-loss")
    plan = next(
        body for body in bodies if body["type"] == "plan_committed" and body["data"]["plan"]["action"] == "replace"
    )
    plan["data"]["plan"]["checkpoint"]["step"] = 100
    (fault,) = faults(replay, written(tmp_path, bodies))
    assert fault["kind"] == "decision_differs"
    assert fault["field"] == "data.plan.checkpoint.step"
    assert (fault["recorded"], fault["recomputed"]) == (100, 110)
    assert fault["engine"] == "0.1.0"


def test_a_changed_fact_changes_the_decision(tmp_path: Path, replay: Replay) -> None:
    """Facts re-chained without a node loss: the recorded plan is no longer due."""
    bodies = [body for body in envelopes("device-failure") if body["type"] != "device_unhealthy"]
    found = faults(replay, written(tmp_path, bodies))
    assert found[0]["kind"] == "decision_not_due"


def test_a_removed_decision_is_missed(tmp_path: Path, replay: Replay) -> None:
    """A decision that was due and not recorded before the next fact is a fault at that fact."""
    bodies = envelopes("device-failure")
    at = next(i for i, body in enumerate(bodies) if body["type"] == "plan_committed" and i > 10)
    found = faults(replay, written(tmp_path, bodies[:at] + bodies[at + 1 :]))
    assert (found[0]["seq"], found[0]["kind"]) == (at + 1, "decision_missed")


def test_a_decision_in_the_wrong_place_is_found(tmp_path: Path, replay: Replay) -> None:
    """A decision moved one fact back was missed first, and then is not what is due."""
    bodies = envelopes("device-failure")
    at = next(i for i, body in enumerate(bodies) if body["type"] == "plan_committed" and i > 10)
    bodies[at], bodies[at + 1] = bodies[at + 1], bodies[at]
    kinds = [item["kind"] for item in faults(replay, written(tmp_path, bodies))]
    assert kinds[:2] == ["decision_missed", "decision_differs"]


def test_a_deadline_before_its_time_is_found(tmp_path: Path, replay: Replay) -> None:
    """A deadline recorded before it was due is a fault, however well it is chained."""
    bodies = envelopes("process-crash")
    deadline = next(body for body in bodies if body["type"] == "deadline_passed")
    at = bodies.index(deadline)
    deadline["recorded_at_ms"] = deadline["at_ms"] = bodies[at - 1]["recorded_at_ms"] + 1
    found = faults(replay, written(tmp_path, bodies))
    assert (found[0]["seq"], found[0]["kind"]) == (at + 1, "deadline_early")


def test_a_deadline_nobody_waits_for_is_found(tmp_path: Path, replay: Replay) -> None:
    """A deadline that the state does not name is a fault."""
    bodies = envelopes("process-crash")
    deadline = next(body for body in bodies if body["type"] == "deadline_passed")
    deadline["data"]["deadline"] = "settle:9"
    assert faults(replay, written(tmp_path, bodies))[0]["kind"] == "deadline_unknown"


def test_a_decision_still_due_at_the_end_is_no_fault(tmp_path: Path, replay: Replay) -> None:
    """A log that ends between a fact and its decision is being written: reported, exit code 0."""
    bodies = envelopes("device-failure")
    at = next(i for i, body in enumerate(bodies) if body["type"] == "plan_committed" and i > 10)
    ran = replay("verify", written(tmp_path, bodies[:at]), "--json")
    assert ran.code == 0
    assert any("is due after seq" in text for text in ran.json["still_due"])


def test_another_engine_version_that_agrees_is_no_fault(tmp_path: Path, replay: Replay) -> None:
    """A plan of another engine version that says the same but for the version is counted, not blamed."""
    from lmr.engine.plan import Plan

    bodies = envelopes("device-failure")
    for body in bodies:
        if body["type"] == "plan_committed" and body["data"]["plan"]["action"] != "start":
            plan = body["data"]["plan"]
            plan["engine"] = "0.0.9"
            plan["plan_id"] = Plan.id_of(plan)
            body["event_id"] = f"plan:{plan['plan_id']}"
    ran = replay("verify", written(tmp_path, bodies), "--json")
    assert (ran.code, ran.json["same_under_other_engine"]) == (0, 1)
    assert ran.json["recorded_engines"] == {"0.1.0": 1, "0.0.9": 1}


def test_an_anchor_shows_a_cut_tail(tmp_path: Path, replay: Replay) -> None:
    """A head kept outside the log, beyond its end, shows that the tail was cut; the chain alone cannot."""
    lines = (CORPUS / "node-loss.jsonl").read_text("utf-8").splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(lines[:30]), "utf-8")
    last = json.loads(lines[-1])
    context = tmp_path / "restart-context.json"
    head = {"seq": last["seq"], "hash": last["hash"]}
    context.write_text(json.dumps({"schema_version": 1, "run": "node-loss", "head": head}), "utf-8")
    assert faults(replay, cut) == []
    (fault,) = faults(replay, cut, "--anchors", context)
    assert (fault["kind"], fault["seq"]) == ("tail_cut", last["seq"])
    assert faults(replay, CORPUS / "node-loss.jsonl", "--anchors", context) == []


def test_an_anchor_shows_a_rewritten_log(tmp_path: Path, replay: Replay) -> None:
    """A log that was chained anew no longer has the head that was kept outside."""
    context = tmp_path / "context.json"
    context.write_text(json.dumps({"head": {"seq": 30, "hash": "0" * 64}}), "utf-8")
    (fault,) = faults(replay, CORPUS / "node-loss.jsonl", "--anchors", context)
    assert (fault["kind"], fault["seq"]) == ("anchor_differs", 30)


def test_a_database_that_somebody_edited(database: Path, replay: Replay) -> None:
    """A row deleted behind the triggers' back is found where the gap begins."""
    with sqlite3.connect(database) as connection:
        for (name,) in connection.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            connection.execute(f'drop trigger "{name}"')
        connection.execute("delete from events where seq = 20")
    (fault,) = faults(replay, database)
    assert (fault["seq"], fault["kind"]) == (20, "chain_broken")


@pytest.mark.parametrize(
    ("statement", "seq", "what"),
    [
        ("update events set type = 'node_left' where seq = 34", 34, "the column type"),
        ("update events set recorded_at_ms = recorded_at_ms + 1 where seq = 12", 12, "the column recorded_at_ms"),
        ("update events set source = 'node-9' where seq = 3", 3, "the column source"),
        (f"update runs set head_hash = '{'0' * 64}'", 58, "the head of the run"),
        ("delete from events where seq > 50", 51, "the record is missing"),
    ],
)
def test_columns_and_head_must_say_what_the_records_say(
    statement: str, seq: int, what: str, database: Path, replay: Replay
) -> None:
    """Audit views read columns and readers trust the head: both are compared with the hashed bytes."""
    with sqlite3.connect(database) as connection:
        for (name,) in connection.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            connection.execute(f'drop trigger "{name}"')
        connection.execute(statement)
    (fault,) = faults(replay, database)
    assert fault["seq"] == seq
    assert what in fault["text"]


def test_text_says_the_verdict_last(database: Path, replay: Replay) -> None:
    """A person reads the verdict and the head in the last two lines."""
    ran = replay("verify", database)
    verdict, head = ran.out.splitlines()[-2:]
    assert verdict == "run node-loss: 58 records, 3 decisions, 1 deadline: verified"
    assert head.startswith("head ")


def test_fast_reading_is_the_same_reading() -> None:
    """The fast decoder gives the very record that the engine's own reader gives, for every event type recorded."""
    seen = set()
    for path in RECORDED:
        for record in read_records(path):
            seen.add(record.event.type)
            assert open_fast(record.body, record.prev_hash, record.hash) == open_record(
                record.body, record.prev_hash, record.hash
            )
    assert len(seen & set(EVENT_TYPES)) >= 25


@pytest.mark.parametrize("change", [{"type": "node_sang"}, {"at_ms": -1}, {"data": {"node": "a"}}, {"source": ""}])
def test_fast_reading_refuses_as_the_engine_does(change: dict[str, Any]) -> None:
    """What does not fit goes to the engine's own reader: kept when unknown, refused with its words when wrong."""
    envelope = {**json.loads(next(read_records(CORPUS / "desync.jsonl")).body), **change}
    if "type" not in change:
        envelope = {**envelope, "type": "node_joined"}
    body = canonical_bytes(envelope)
    outcomes = []
    for reader in (open_record, open_fast):
        try:
            outcomes.append(("read", reader(body, "0" * 64, "0" * 64)))
        except Exception as error:
            outcomes.append((type(error).__name__, str(error)))
    assert outcomes[0] == outcomes[1]
