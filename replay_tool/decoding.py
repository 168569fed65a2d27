"""Opening records fast: the same `Record` that `lmr.engine.record.open_record` gives, at a third of its cost.

Nearly every record of a long log is a plain fact. Those go through one compiled validator from bytes to model.
Everything else, and everything that does not fit, goes through `open_record`, which also says what is wrong.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from lmr.engine.canonical import MAX_INTEGER
from lmr.engine.events import EVENT_TYPES, Event, EventData
from lmr.engine.record import Record, open_record

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
    envelope.__pydantic_config__ = ConfigDict(strict=True, extra="ignore")
    return TypeAdapter(envelope).validator


_VALIDATORS: dict[bytes, tuple[type[EventData], Any]] = {
    name.encode(): (model, _validator(model).validate_json) for name, model in EVENT_TYPES.items() if name not in _SLOW
}
_TYPE_KEY = b'"type":"'


def open_fast(body: bytes, prev_hash: str, hash_: str) -> Record:
    """The record of stored bytes, as `open_record` reads it.

    Raises:
        NotCanonical, EventInvalid: as `open_record`.
    """
    # Canonical keys are sorted: the envelope's own `type` is behind `data` with whatever is in it.
    start = body.rfind(_TYPE_KEY) + 8
    known = _VALIDATORS.get(body[start : body.find(b'"', start)])
    if known is None:
        return open_record(body, prev_hash, hash_)
    model, validate = known
    try:
        it = validate(body)
    except ValidationError:
        return open_record(body, prev_hash, hash_)
    version = it["version"]
    if version != model.version:  # an older one is brought up to date there
        return open_record(body, prev_hash, hash_)
    return Record(
        it["run_id"],
        it["seq"],
        it["event_id"],
        version,
        it["recorded_at_ms"],
        it["epoch"],
        Event(it["type"], it["at_ms"], it["source"], it["data"]),
        body,
        prev_hash,
        hash_,
    )
