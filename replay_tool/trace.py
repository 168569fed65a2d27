"""A history as a trace for https://ui.perfetto.dev: tracks, slices, instants and one counter, in both of its formats.

The protobuf is written by hand from Perfetto's published `perfetto_trace.proto` (numbers below), so that nothing need
be installed; the JSON is its older trace-event format, for people who want to read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from lmr.replay_tool.history import History, Incident, Span

RUN_TRACK, STEP_TRACK, FIRST_TRACK = 1, 2, 10


@dataclass(frozen=True)
class Track:
    """One row. Rows with a parent are shown below it."""

    uuid: int
    name: str
    parent: int | None = None
    counter: bool = False


@dataclass(frozen=True)
class Mark:
    """Something on a track: a slice from `at_ms` to `to_ms`, an instant, or a counter's value."""

    track: int
    kind: Literal["slice", "instant", "counter"]
    name: str
    at_ms: int
    to_ms: int = 0
    value: int = 0
    about: dict[str, str] = field(default_factory=dict)


def tracks_of(history: History) -> list[Track]:
    """One track for the incidents, one for the step, one a node."""
    rows = [Track(RUN_TRACK, f"run {history.run_id}"), Track(STEP_TRACK, "training step", RUN_TRACK, counter=True)]
    rows += [Track(FIRST_TRACK + index, name) for index, name in enumerate(history.nodes)]
    return rows


def marks_of(history: History) -> Iterator[Mark]:
    """Everything on the tracks."""
    index = {name: FIRST_TRACK + number for number, name in enumerate(history.nodes)}
    for incident in history.incidents:
        yield from _incident(incident)
    for node in history.nodes.values():
        yield from (_span(index[node.name], span, history.end_ms) for span in node.spans)
    for fact in history.facts:
        about = {"seq": str(fact.seq), "what": fact.text, "source": fact.source}
        for track in [index[name] for name in fact.nodes if name in index] or [RUN_TRACK]:
            yield Mark(track, "instant", fact.type, fact.at_ms, about=about)
    for at_ms, _, step in history.progress:
        yield Mark(STEP_TRACK, "counter", "step", at_ms, value=step)


def _span(track: int, span: Span, end_ms: int) -> Mark:
    name = f"g{span.generation} slot {span.slot}" if span.role == "active" else span.role
    to_ms = span.to_ms if span.to_ms is not None else end_ms
    return Mark(track, "slice", name, span.from_ms, to_ms, about={"role": span.role})


def _incident(incident: Incident) -> Iterator[Mark]:
    known = [(name.removesuffix("_ms"), value) for name, value in vars(incident.phases).items() if value is not None]
    if not known:
        return
    first, last = known[0][1], max(value for _, value in known)
    about = {
        "cause": incident.cause,
        "blamed": ", ".join(incident.nodes) or "nobody",
        "action": incident.action,
        "lost_steps": str(incident.lost_steps),
        "plans": ", ".join(item.plan.plan_id[:12] for item in incident.plans),
    }
    yield Mark(RUN_TRACK, "slice", f"incident {incident.number}: {incident.cause}", first, last, about=about)
    for (before, start), (name, end) in pairwise(known):
        if end >= start:
            yield Mark(RUN_TRACK, "slice", f"{before} to {name}", start, end)


# -- JSON ------------------------------------------------------------------------------------------------------------


def as_json(history: History) -> Iterator[str]:
    """The trace-event JSON, piece by piece."""
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    yield json.dumps({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": f"run {history.run_id}"}})
    for track in tracks_of(history):
        if not track.counter:
            named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": track.uuid, "args": {"name": track.name}}
            yield ",\n" + json.dumps(named, ensure_ascii=False)
    for mark in marks_of(history):
        yield ",\n" + json.dumps(_json_mark(mark), ensure_ascii=False)
    yield "\n]}\n"


def _json_mark(mark: Mark) -> dict[str, object]:
    base: dict[str, object] = {"name": mark.name, "cat": "lmr", "ts": mark.at_ms * 1000, "pid": 1, "tid": mark.track}
    match mark.kind:
        case "slice":
            return {**base, "ph": "X", "dur": max(0, mark.to_ms - mark.at_ms) * 1000, "args": mark.about}
        case "instant":
            return {**base, "ph": "i", "s": "t", "args": mark.about}
        case "counter":
            return {**base, "ph": "C", "args": {"step": mark.value}}


# -- protobuf: field numbers of perfetto_trace.proto -------------------------------------------------------------------

_PACKET = 1  # Trace.packet
_TIMESTAMP, _SEQUENCE, _EVENT, _DESCRIPTOR = 8, 10, 11, 60  # TracePacket
_UUID, _NAME, _PARENT, _COUNTER = 1, 2, 5, 8  # TrackDescriptor
_ANNOTATION, _TYPE, _TRACK_UUID, _EVENT_NAME, _COUNTER_VALUE = 4, 9, 11, 23, 30  # TrackEvent
_KEY, _STRING = 10, 6  # DebugAnnotation
_BEGIN, _END, _INSTANT, _COUNT = 1, 2, 3, 4  # TrackEvent.Type


def as_protobuf(history: History) -> Iterator[bytes]:
    """The protobuf trace, packet by packet."""
    for track in tracks_of(history):
        body = _number(_UUID, track.uuid) + _text(_NAME, track.name)
        if track.parent is not None:
            body += _number(_PARENT, track.parent)
        if track.counter:
            body += _block(_COUNTER, b"")
        yield _packet(_block(_DESCRIPTOR, body))
    # Slices of one track must nest: at equal times ends come first, and the longer slice begins first.
    for at_ms, _, _, body in sorted(_events(marks_of(history)), key=lambda item: item[:3]):
        yield _packet(_number(_TIMESTAMP, at_ms * 1_000_000) + _block(_EVENT, body))


def _events(marks: Iterable[Mark]) -> Iterator[tuple[int, int, int, bytes]]:
    for mark in marks:
        on = _number(_TRACK_UUID, mark.track)
        about = b"".join(
            _block(_ANNOTATION, _text(_KEY, key) + _text(_STRING, value)) for key, value in mark.about.items()
        )
        named = on + _text(_EVENT_NAME, mark.name) + about
        match mark.kind:
            case "slice" if mark.to_ms > mark.at_ms:
                yield mark.at_ms, 1, -mark.to_ms, _number(_TYPE, _BEGIN) + named
                yield mark.to_ms, 0, -mark.at_ms, _number(_TYPE, _END) + on
            case "slice" | "instant":
                yield mark.at_ms, 2, 0, _number(_TYPE, _INSTANT) + named
            case "counter":
                yield mark.at_ms, 3, 0, _number(_TYPE, _COUNT) + on + _number(_COUNTER_VALUE, mark.value)


def _packet(body: bytes) -> bytes:
    return _block(_PACKET, body + _number(_SEQUENCE, 1))


def _number(field_number: int, value: int) -> bytes:
    return _varint(field_number << 3) + _varint(value)


def _text(field_number: int, value: str) -> bytes:
    return _block(field_number, value.encode("utf-8"))


def _block(field_number: int, value: bytes) -> bytes:
    return _varint(field_number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
