"""A record: an event with its place in one run's log, sealed into the hash chain."""

import hashlib
from dataclasses import dataclass
from typing import Any

from lmr.engine.canonical import canonical_bytes, parse_json
from lmr.engine.errors import EventInvalid, NotCanonical
from lmr.engine.events import EVENT_TYPES, Event
from lmr.engine.upcasting import UPCASTERS, upcast

_ENVELOPE_INTS = ("seq", "version", "recorded_at_ms", "epoch")
_ENVELOPE_STRINGS = ("run_id", "event_id")


@dataclass(frozen=True, slots=True)
class Record:
    """One row of the log. `seq` is dense from 1 and the only order there is; `hash` covers everything before it."""

    run_id: str
    seq: int
    event_id: str
    version: int
    recorded_at_ms: int
    epoch: int
    event: Event
    body: bytes
    prev_hash: str
    hash: str


def genesis_hash(run_id: str) -> str:
    """What the first record of a run chains to: hex SHA-256(`lmr-run-1\\0`, run_id)."""
    return hashlib.sha256(b"lmr-run-1\0" + run_id.encode("utf-8")).hexdigest()


def record_hash(prev_hash: str, body: bytes) -> str:
    """Hex SHA-256(`lmr-event-1\\0`, the 32 bytes of `prev_hash`, body)."""
    return hashlib.sha256(b"lmr-event-1\0" + bytes.fromhex(prev_hash) + body).hexdigest()


def payload_bytes(event: Event) -> bytes:
    """Canonical bytes of what the observer said; a retry under the same event id must say the same."""
    return canonical_bytes(event.to_json())


def seal(
    event: Event, *, run_id: str, seq: int, event_id: str, recorded_at_ms: int, epoch: int, prev_hash: str
) -> Record:
    """The record that puts `event` at `seq`, chained to `prev_hash`.

    Raises:
        NotCanonical: the event holds a value without canonical bytes.
    """
    version = EVENT_TYPES[event.type].version if event.type in EVENT_TYPES else 1
    envelope: dict[str, Any] = {
        **event.to_json(),
        "run_id": run_id,
        "seq": seq,
        "event_id": event_id,
        "version": version,
        "recorded_at_ms": recorded_at_ms,
        "epoch": epoch,
    }
    body = canonical_bytes(envelope)
    return Record(
        run_id, seq, event_id, version, recorded_at_ms, epoch, event, body, prev_hash, record_hash(prev_hash, body)
    )


def open_record(body: bytes, prev_hash: str, hash: str) -> Record:  # noqa: A002 - the log's own word
    """The record of stored bytes, read leniently and as today's version says it; `body` and `version` stay as stored.

    Whether `hash` is right is the verifier's question.

    Raises:
        NotCanonical: the body is not JSON.
        EventInvalid: the body is no event.
    """
    envelope = parse_json(body)
    if not isinstance(envelope, dict):
        raise NotCanonical("$", "an event is an object")
    event = Event.parse(_up_to_date(envelope), strict=False)
    for key in _ENVELOPE_INTS:
        if type(envelope.get(key)) is not int:
            raise EventInvalid(event.type, key, "must be an integer")
    for key in _ENVELOPE_STRINGS:
        if not isinstance(envelope.get(key), str):
            raise EventInvalid(event.type, key, "must be a string")
    return Record(
        envelope["run_id"],
        envelope["seq"],
        envelope["event_id"],
        envelope["version"],
        envelope["recorded_at_ms"],
        envelope["epoch"],
        event,
        body,
        prev_hash,
        hash,
    )


def _up_to_date(envelope: dict[str, Any]) -> dict[str, Any]:
    type_, version, data = (envelope.get(key) for key in ("type", "version", "data"))
    if not isinstance(type_, str) or type(version) is not int or not isinstance(data, dict):
        return envelope  # what is wrong with it, the parser says
    if (type_, version) not in UPCASTERS:
        return envelope
    return {**envelope, "data": upcast(type_, version, data)}
