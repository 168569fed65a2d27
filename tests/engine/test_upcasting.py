"""Records of every released version of every type are read as today's, and their bytes stay what they were."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmr.engine.events import EVENT_TYPES, DeviceUnhealthy, Event, NodeJoined, UnknownData
from lmr.engine.record import Record, genesis_hash, open_record, record_hash, seal
from lmr.engine.reduce import apply
from lmr.engine.state import State
from lmr.engine.upcasting import UPCASTERS, upcast
from lmr.replay_tool.decoding import open_fast

GOLDEN = [json.loads(line) for line in (Path(__file__).parent / "golden" / "every-type.jsonl").read_text().splitlines()]
"""One recorded event of each type at each version there ever was. A new version adds its line; none is ever changed."""
OLD_ENVELOPE = {
    "at_ms": 1_795_200_000_000, "epoch": 1, "event_id": "node-1/a/1", "recorded_at_ms": 1_795_200_000_005,
    "run_id": "run-1", "seq": 1, "source": "node-1",
}  # fmt: skip


def _said(line: dict[str, str]) -> tuple[str, int]:
    envelope = json.loads(line["body"])
    return envelope["type"], envelope["version"]


@pytest.mark.parametrize("line", GOLDEN, ids=lambda line: "-".join(map(str, _said(line))))
@pytest.mark.parametrize("opened", [open_record, open_fast])
def test_every_recorded_event_is_read(line: dict[str, str], opened: Any) -> None:
    type_, version = _said(line)
    body = line["body"].encode()
    record = opened(body, line["prev_hash"], line["hash"])
    assert (record.event.type, record.version, record.body) == (type_, version, body)
    assert record_hash(line["prev_hash"], body) == line["hash"]
    assert type(record.event.data) is EVENT_TYPES[type_]
    Event.parse(record.event.to_json(), strict=True)  # today's form, every field known
    if version == EVENT_TYPES[type_].version:
        assert _sealed_again(record) == record


def test_every_version_of_every_type_is_in_the_corpus_and_has_a_way_up() -> None:
    versions = {(type_, version) for type_, model in EVENT_TYPES.items() for version in range(1, model.version + 1)}
    assert set(map(_said, GOLDEN)) == versions
    assert set(UPCASTERS) == {(type_, v) for type_, v in versions if v < EVENT_TYPES[type_].version}


def _sealed_again(record: Record) -> Record:
    return seal(
        record.event, run_id=record.run_id, seq=record.seq, event_id=record.event_id,
        recorded_at_ms=record.recorded_at_ms, epoch=record.epoch, prev_hash=record.prev_hash,
    )  # fmt: skip


class TestSyntheticOlderVersions:
    """`node_joined` as if it were at its third version: `host` became `address`, then `incarnation` became a text."""

    @pytest.fixture(autouse=True)
    def third_version(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def address_for_host(data: dict[str, Any]) -> dict[str, Any]:
            return {"address" if key == "host" else key: value for key, value in data.items()}

        def incarnation_as_text(data: dict[str, Any]) -> dict[str, Any]:
            return {**data, "incarnation": str(data["incarnation"])}

        monkeypatch.setattr(NodeJoined, "version", 3)
        monkeypatch.setitem(UPCASTERS, ("node_joined", 1), address_for_host)
        monkeypatch.setitem(UPCASTERS, ("node_joined", 2), incarnation_as_text)

    @pytest.mark.parametrize("opened", [open_record, open_fast])
    @pytest.mark.parametrize(
        ("version", "data"),
        [
            (1, {"node": "node-1", "incarnation": 7, "host": "10.0.0.1"}),
            (2, {"node": "node-1", "incarnation": 7, "address": "10.0.0.1"}),
            (3, {"node": "node-1", "incarnation": "7", "address": "10.0.0.1"}),
        ],
    )
    def test_each_is_read_as_the_third(self, opened: Any, version: int, data: dict[str, Any]) -> None:
        body, hash_ = _old_body(version, data)
        record = opened(body, genesis_hash("run-1"), hash_)
        assert record.event.data == NodeJoined(node="node-1", incarnation="7", address="10.0.0.1")
        assert (record.version, record.body, record.hash) == (version, body, hash_)
        state = State()
        apply(state, record)
        assert state.nodes["node-1"].incarnation == "7"

    @pytest.mark.parametrize("opened", [open_record, open_fast])
    def test_a_change_of_meaning_is_applied_where_the_old_form_would_also_fit(
        self, opened: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(DeviceUnhealthy, "version", 2)
        monkeypatch.setitem(UPCASTERS, ("device_unhealthy", 1), lambda data: {**data, "severity": "fatal"})
        data = {"node": "node-1", "device": "gpu-0", "metric": "xid", "severity": "warning"}
        body, hash_ = _old_body(1, data, "device_unhealthy")
        said = opened(body, genesis_hash("run-1"), hash_).event.data
        assert said.severity == "fatal"

    def test_what_is_written_now_has_the_newest_version(self) -> None:
        data = NodeJoined(node="node-1", incarnation="7", address="10.0.0.1")
        event = Event.of(data, at_ms=1, source="node-1")
        record = seal(event, run_id="r", seq=1, event_id="e", recorded_at_ms=1, epoch=0, prev_hash=genesis_hash("r"))
        assert record.version == 3
        assert open_record(record.body, record.prev_hash, record.hash) == record

    def test_a_newer_version_than_known_is_kept_as_it_is(self) -> None:
        body, hash_ = _old_body(9, {"node": "node-1", "incarnation": "7", "address": "a", "rack": {"row": 4}})
        record = open_record(body, genesis_hash("run-1"), hash_)
        assert (record.version, record.event.to_json()["data"]["rack"]) == (9, {"row": 4})

    def test_a_step_up_gets_a_copy(self) -> None:
        stored = {"node": "node-1", "incarnation": 7, "host": "10.0.0.1"}
        upcast("node_joined", 1, stored)
        assert stored == {"node": "node-1", "incarnation": 7, "host": "10.0.0.1"}


def test_an_unknown_type_is_kept_at_any_version() -> None:
    body, hash_ = _old_body(4, {"x": 1}, "gpu_sneezed")
    data = open_record(body, genesis_hash("run-1"), hash_).event.data
    assert isinstance(data, UnknownData)
    assert data.raw == {"x": 1}


def _old_body(version: int, data: dict[str, Any], type_: str = "node_joined") -> tuple[bytes, str]:
    envelope = {**OLD_ENVELOPE, "type": type_, "version": version, "data": data}
    body = json.dumps(envelope, sort_keys=True, separators=(",", ":")).encode()
    return body, record_hash(genesis_hash("run-1"), body)
