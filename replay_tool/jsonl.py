"""JSONL files: bare facts (one event a line) or full records (one event a line with its place in the hash chain).

Blank lines and lines that begin with `#` are skipped, so that a file may tell its story.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmr.engine.canonical import canonical_bytes, parse_json
from lmr.engine.errors import EngineError
from lmr.engine.events import DECISIONS, DeadlinePassed, Event, UnknownData
from lmr.engine.record import Record
from lmr.replay_tool.decoding import open_fast
from lmr.replay_tool.errors import Unreadable

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Four times the largest event: a longer line is none, and is not read into memory."""

HASH_FIELDS = ("prev_hash", "hash")


@dataclass(frozen=True)
class Facts:
    """Bare facts of a JSONL file.

    Attributes:
        events: the facts in file order, decisions and deadlines left out (the engine makes them anew).
        ids: their event ids, `line:N`.
        left_out: how many decisions and deadlines the file held.
        unknown_types: types this version does not know, with their number.
    """

    events: tuple[Event, ...]
    ids: tuple[str, ...]
    left_out: int
    unknown_types: dict[str, int]


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every line that carries JSON.

    Raises:
        Unreadable: the file cannot be read, or ends inside a line.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
                if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                    raise Unreadable(str(path), f"line {number} is longer than any event ({MAX_LINE_BYTES} bytes)")
                text = line.strip()
                if not text or text.startswith(b"#"):
                    continue
                if not line.endswith(b"\n") and not text.endswith(b"}"):
                    raise Unreadable(
                        str(path), f"ends in the middle of line {number} (cut short, or still being written)"
                    )
                yield number, text
    except OSError as error:
        raise Unreadable(str(path), error.strerror or str(error)) from error


def parse_line(path: Path, number: int, text: bytes) -> dict[str, Any]:
    """The JSON object of one line.

    Raises:
        Unreadable: naming the line.
    """
    try:
        value = parse_json(text)
    except EngineError as error:
        raise Unreadable(str(path), f"line {number}: {str(error).removeprefix('$: ')}") from error
    if not isinstance(value, dict):
        raise Unreadable(str(path), f"line {number}: not a JSON object")
    return value


def holds_records(path: Path) -> bool:
    """True when the first line carries a hash: full records rather than bare facts.

    Raises:
        Unreadable: nothing in the file looks like an event.
    """
    for number, text in lines(path):
        first = parse_line(path, number, text)
        if "type" not in first:
            raise Unreadable(str(path), f"line {number}: not an event (no `type`)")
        return "hash" in first
    raise Unreadable(str(path), "holds no events")


def read_facts(path: Path) -> Facts:
    """Every fact of a bare JSONL file.

    Raises:
        Unreadable: naming the line, the type and the key at fault.
    """
    events: list[Event] = []
    ids: list[str] = []
    unknown: dict[str, int] = {}
    left_out = 0
    for number, text in lines(path):
        try:
            event = Event.parse(parse_line(path, number, text), strict=False)
        except EngineError as error:
            raise Unreadable(str(path), f"line {number}: {error}") from error
        if event.type in DECISIONS or isinstance(event.data, DeadlinePassed):
            left_out += 1
            continue
        if isinstance(event.data, UnknownData):
            unknown[event.type] = unknown.get(event.type, 0) + 1
        events.append(event)
        ids.append(f"line:{number}")
    return Facts(tuple(events), tuple(ids), left_out, unknown)


def read_records(path: Path) -> Iterator[Record]:
    """Every record of a full JSONL file, in file order, in constant memory. Hashes are not checked here.

    Raises:
        Unreadable: naming the line.
    """
    for number, text in lines(path):
        envelope = parse_line(path, number, text)
        chain = [envelope.pop(key, None) for key in HASH_FIELDS]
        if not all(_is_sha256(item) for item in chain):
            raise Unreadable(str(path), f"line {number}: `prev_hash` and `hash` must be 64 hex digits")
        try:
            yield open_fast(canonical_bytes(envelope), chain[0], chain[1])
        except EngineError as error:
            raise Unreadable(str(path), f"line {number}: {error}") from error


def record_line(record: Record) -> str:
    """One line of a full JSONL file: the canonical envelope, then the two hash fields."""
    body = record.body.decode("utf-8")
    return f'{body[:-1]},"prev_hash":"{record.prev_hash}","hash":"{record.hash}"}}\n'


def fact_line(event: Event) -> str:
    """One line of a bare JSONL file."""
    return json.dumps(event.to_json(), ensure_ascii=False) + "\n"


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(digit in "0123456789abcdef" for digit in value)
