"""Opening records fast: the same `Record` that `lmr.engine.record.open_record` gives, at a third of its cost.

Nearly every record of a long log is a plain fact. Those go through one compiled validator from bytes to model.
Everything else, and everything that does not fit, goes through `open_record`, which also says what is wrong.
"""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from operator import itemgetter
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from lmr.engine.canonical import MAX_INTEGER
from lmr.engine.events import EVENT_TYPES, Event, EventData
from lmr.engine.record import Record, open_record
from lmr.store import LogCorrupt

_SLOW = frozenset({"run_opened", "policy_changed", "plan_committed", "run_closed"})
"""Types that carry free tables or decide: few, and read with every check."""


def _validator(model: type[Any]) -> Any:
    typed_dict: Any = TypedDict  # made for each model, so no type that mypy could follow
    envelope = typed_dict(
        "Envelope",
        {
            "type": str,
            "at_ms": Annotated[int, Field(ge=0, le=MAX_INTEGER)],
            "source": Annotated[str, Field(min_length=1)],
            "run_id": str,
            "seq": int,
            "event_id": str,
            "version": int,
            "recorded_at_ms": int,
            "epoch": int,
            "data": model,
        },
    )
    envelope.__pydantic_config__ = ConfigDict(strict=True, extra="ignore", cache_strings="keys")
    return TypeAdapter(envelope).validator


def _twin(frozen: type[Any]) -> Any:
    """A class of the same slots: filled without the detour of a frozen one, an instance may then become one."""
    return make_dataclass(f"_{frozen.__name__}", [field.name for field in fields(frozen)], slots=True)


_VALIDATORS: dict[str, tuple[type[EventData], Any]] = {
    name: (model, _validator(model).validate_json) for name, model in EVENT_TYPES.items() if name not in _SLOW
}
_TYPE_KEY = b'"type":"'
COLUMNS = ("type", "at_ms", "source", "event_id", "version", "recorded_at_ms", "epoch")
"""The columns of `events` that repeat what the body says, beside its run and seq."""
_said = itemgetter(*COLUMNS)
_record, _event = _twin(Record), _twin(Event)


def open_fast(body: bytes, prev_hash: str, hash_: str) -> Record:
    """The record of stored bytes, as `open_record` reads it.

    Raises:
        NotCanonical, EventInvalid: as `open_record`.
    """
    # Canonical keys are sorted: the envelope's own `type` is behind `data` with whatever is in it.
    start = body.rfind(_TYPE_KEY) + 8
    it = _plain(body[start : body.find(b'"', start)].decode("utf-8", "replace"), body)
    return open_record(body, prev_hash, hash_) if it is None else _made(it, body, prev_hash, hash_)


def open_row(row: tuple[Any, ...]) -> Record:
    """The record of a row (seq, body, prev_hash, hash, then `COLUMNS`), each column compared with the body.

    Raises:
        NotCanonical, EventInvalid: as `open_record`.
        LogCorrupt: a column does not say what the body says.
    """
    seq, body, prev_hash, hash_ = row[:4]
    if type(body) is not bytes:
        raise LogCorrupt(seq, "the stored body is not bytes")
    it = _plain(row[4], body)
    if it is not None and it["seq"] == seq and _said(it) == row[4:]:
        return _made(it, body, prev_hash, hash_)
    record = open_record(body, prev_hash, hash_)
    event = record.event
    said = {
        "seq": record.seq, "type": event.type, "at_ms": event.at_ms, "source": event.source,
        "event_id": record.event_id, "version": record.version, "recorded_at_ms": record.recorded_at_ms,
        "epoch": record.epoch,
    }  # fmt: skip
    for name, column in zip(("seq", *COLUMNS), (seq, *row[4:]), strict=True):
        if said[name] != column:
            raise LogCorrupt(seq, f"the column {name} is not what the record says")
    return record


def _plain(type_: Any, body: bytes) -> dict[str, Any] | None:
    """The envelope, its data read, of a plain fact of that type at today's version; None for anything else."""
    known = _VALIDATORS.get(type_)
    if known is None:
        return None
    model, validate = known
    try:
        it: dict[str, Any] = validate(body)
    except ValidationError:
        return None
    # An older one is brought up to date by `open_record`.
    return it if it["type"] == type_ and it["version"] == model.version else None


def _made(it: dict[str, Any], body: bytes, prev_hash: str, hash_: str) -> Record:
    record: Record
    # In the order of the validator's fields.
    type_, at_ms, source, run_id, seq, event_id, version, recorded_at_ms, epoch, data = it.values()
    event = _event(type_, at_ms, source, data)
    event.__class__ = Event
    record = _record(run_id, seq, event_id, version, recorded_at_ms, epoch, event, body, prev_hash, hash_)
    record.__class__ = Record
    return record
