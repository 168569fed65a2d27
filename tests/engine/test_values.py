"""Canonical bytes, events, records, policy, plan and lineage as values."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmr.engine import (
    Event,
    EventInvalid,
    FoldMisused,
    NotCanonical,
    Plan,
    PolicyInvalid,
    RecoveryPolicy,
    State,
    apply,
    canonical_bytes,
    genesis_hash,
    open_record,
    parse_canonical,
    payload_bytes,
    record_hash,
    seal,
)
from lmr.engine.events import EVENT_TYPES, UnknownData
from lmr.engine.lineage import Lineage
from lmr.engine.offline import run_facts

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)
JOIN = {"type": "node_joined", "at_ms": 5, "source": "n1", "data": {"node": "n1", "incarnation": "a", "address": "h"}}


@given(json_values)
def test_canonical_bytes_round_trip(value: Any) -> None:
    data = canonical_bytes(value)
    assert parse_canonical(data) == value
    assert canonical_bytes(json.loads(data)) == data


def test_keys_are_ordered_by_utf16_code_units() -> None:
    """RFC 8785 section 3.2.3: U+1F600 is a surrogate pair and sorts before U+FB33."""
    data = canonical_bytes({"\ufb33": 1, "\U0001f600": 2, "1": 3, "\r": 4})
    assert list(json.loads(data)) == ["\r", "1", "\U0001f600", "\ufb33"]


def test_control_characters_are_escaped_as_rfc8785_says() -> None:
    assert canonical_bytes('\x00\b\t\n\f\r\x1f"\\/\x7f') == b'"\\u0000\\b\\t\\n\\f\\r\\u001f\\"\\\\/\x7f"'


def test_every_character_is_written_as_the_standard_encoder_writes_it() -> None:
    every = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    assert canonical_bytes({"a": every}) == json.dumps({"a": every}, ensure_ascii=False, separators=(",", ":")).encode()


def test_deep_nesting_has_canonical_bytes_or_is_refused() -> None:
    value: Any = 0
    for _ in range(300):  # deeper than the quick encoder goes
        value = {"a": value}
    assert canonical_bytes(value) == b'{"a":' * 300 + b"0" + b"}" * 300
    for _ in range(100_000):
        value = [value]
    with pytest.raises(NotCanonical, match="too deeply"):
        canonical_bytes(value)


@pytest.mark.parametrize("value", [1.0, {"a": 2**53}, -(2**53), {1: "a"}, "\ud800", {"a": b"x"}, {"a": {1, 2}}])
def test_values_without_canonical_form(value: Any) -> None:
    with pytest.raises(NotCanonical):
        canonical_bytes(value)


@pytest.mark.parametrize("data", [b'{"b":1,"a":2}', b'{"a": 1}', b'{"a":1,"a":1}', b"1.0", b"NaN", b"{", b"\xff"])
def test_bytes_that_are_not_canonical(data: bytes) -> None:
    with pytest.raises(NotCanonical):
        parse_canonical(data)


def test_writing_is_strict() -> None:
    with pytest.raises(EventInvalid) as unknown_field:
        Event.parse({**JOIN, "data": {**JOIN["data"], "colour": "red"}})  # type: ignore[dict-item]
    assert (unknown_field.value.type, unknown_field.value.key) == ("node_joined", "colour")
    with pytest.raises(EventInvalid) as unknown_type:
        Event.parse({**JOIN, "type": "node_painted"})
    assert unknown_type.value.type == "node_painted"
    with pytest.raises(EventInvalid, match="address"):
        Event.parse({**JOIN, "data": {"node": "n1", "incarnation": "a"}})


def test_reading_is_lenient() -> None:
    known = {**JOIN, "data": {**JOIN["data"], "colour": "red"}}  # type: ignore[dict-item]
    assert Event.parse(known, strict=False).to_json() == known
    strange = {"type": "node_painted", "at_ms": 5, "source": "n1", "data": {"colour": ["red", {"deep": 1}]}}
    event = Event.parse(strange, strict=False)
    assert isinstance(event.data, UnknownData)
    assert event.to_json() == strange


@pytest.mark.parametrize("at_ms", [-1, 1.5, "5", None, True, 2**53])
def test_time_is_whole_milliseconds(at_ms: Any) -> None:
    with pytest.raises(EventInvalid, match="at_ms"):
        Event.parse({**JOIN, "at_ms": at_ms})


def test_an_exit_names_rank_or_ranks() -> None:
    data = {"generation": 0, "node": "n1", "exit_code": 1, "signal": None, "step": None, "error": None}
    with pytest.raises(EventInvalid, match="exactly one"):
        Event.parse({"type": "worker_exited", "at_ms": 1, "source": "n1", "data": data})
    with pytest.raises(EventInvalid, match="exactly one"):
        Event.parse({"type": "worker_exited", "at_ms": 1, "source": "n1", "data": {**data, "rank": 1, "ranks": [1]}})


def test_every_type_has_its_name_and_version() -> None:
    for name, model in EVENT_TYPES.items():
        assert model.__name__ == "".join(part.capitalize() for part in name.split("_"))
        assert model.version == 1
        assert model.__doc__


def _record() -> Any:
    event = Event.parse(JOIN)
    return seal(event, run_id="r", seq=1, event_id="n1/a/0", recorded_at_ms=9, epoch=2, prev_hash=genesis_hash("r"))


def test_a_record_chains_and_reopens() -> None:
    record = _record()
    assert genesis_hash("r") == hashlib.sha256(b"lmr-run-1\0r").hexdigest()
    body = json.loads(record.body)
    assert body == {
        **JOIN, "run_id": "r", "seq": 1, "event_id": "n1/a/0", "version": 1, "recorded_at_ms": 9, "epoch": 2
    }  # fmt: skip
    chained = hashlib.sha256(b"lmr-event-1\0" + bytes.fromhex(genesis_hash("r")) + record.body).hexdigest()
    assert record.hash == chained == record_hash(record.prev_hash, record.body)
    assert open_record(record.body, record.prev_hash, record.hash) == record
    assert json.loads(payload_bytes(record.event)) == JOIN


@pytest.mark.parametrize("body", [b"[]", b"{", b"{}", canonical_bytes(JOIN)])
def test_bodies_that_are_no_record(body: bytes) -> None:
    with pytest.raises((NotCanonical, EventInvalid)):
        open_record(body, "00" * 32, "00" * 32)


def test_records_fold_in_order_only() -> None:
    state, record = State(), _record()
    apply(state, record)
    with pytest.raises(FoldMisused):
        apply(state, record)


def test_policy_is_documented_strict_and_digested() -> None:
    policy = RecoveryPolicy()
    for name, field in RecoveryPolicy.model_fields.items():
        assert field.description, name
        assert field.default is not ..., name
    assert RecoveryPolicy.from_table(policy.table()).digest() == policy.digest()
    assert RecoveryPolicy(settle_ms=301).digest() != policy.digest()
    with pytest.raises(PolicyInvalid) as unknown:
        RecoveryPolicy.from_table({"settle": 1})
    assert unknown.value.key == "settle"
    assert "settle_ms" in unknown.value.why
    with pytest.raises(PolicyInvalid, match="start_s"):
        RecoveryPolicy.from_table({"start_s": "120"})
    assert RecoveryPolicy.from_table({"settle": 1, "settle_ms": 5, "start_s": "x"}, strict=False).settle_ms == 5


def test_plan_id_covers_everything_else() -> None:
    opened = {"type": "run_opened", "at_ms": 1, "source": "decider", "data": {
        "run_id": "r", "min_nodes": 1, "max_nodes": 1, "local_world_size": 1, "detection": True,
        "checkpointing": True, "policy": {}}}  # fmt: skip
    records = [record for _, record in run_facts([Event.parse(opened), Event.parse(JOIN)])]
    data = records[-1].event.to_json()["data"]["plan"]
    rest = {key: value for key, value in data.items() if key != "plan_id"}
    assert data["plan_id"] == hashlib.sha256(canonical_bytes(rest)).hexdigest()
    assert Plan.id_of({**rest, "reason": "hang"}) != data["plan_id"]


@given(st.lists(st.integers(0, 6), max_size=8), st.integers(-1, 9), st.integers(0, 7))
def test_lineage_is_the_minimum_of_later_restores(restores: list[int], generation: int, step: int) -> None:
    lineage = Lineage()
    for began, restored in enumerate(restores):
        lineage.restored(began, restored)
    later = [restored for began, restored in enumerate(restores) if began > generation]
    assert lineage.contains(generation, step) == all(step <= restored for restored in later)
