"""Redaction: a log that may leave the house and still verifies and replays.

Machines, addresses, people and free texts become stand-ins: `node-0003`, `address-0001`, `person-0002`, `text-0007`.
The same thing always gets the same stand-in, and stand-ins sort as the originals did, because the engine breaks ties by
name. Codes (`lease_expired`, `digest_mismatch`), digests and numbers stay: they are what an analysis needs.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from lmr.engine.canonical import canonical_bytes, parse_json
from lmr.engine.plan import Plan
from lmr.engine.record import Record

_CODE = re.compile(r"[a-z][a-z0-9_]{0,47}")
_NODE_KEYS = frozenset({"node", "nodes", "holder", "quarantined", "standby", "source"})
_KIND_OF_KEY = {
    **dict.fromkeys(_NODE_KEYS, "node"),
    "incarnation": "life",
    "address": "address",
    "host": "address",
    "failure_domain": "domain",
    "by": "person",
    "request": "request",
    "checkpoint_id": "checkpoint",
    "why": "text",
    "message": "text",
    "name": "text",
}
_FREE_TEXT_TYPES = frozenset({"node_left", "node_lost"})
_NAMED = frozenset({"node", "life", "person", "request", "checkpoint"})
"""Kinds whose names also appear inside other strings: event ids, deadlines, rejected options."""

_INSIDE = frozenset({"deadline", "option", "event_id", "reason"})


class Redaction:
    """The stand-ins of one log."""

    def __init__(self, found: dict[str, set[str]]) -> None:
        self._stand_ins = {
            kind: {name: f"{kind}-{number:04}" for number, name in enumerate(sorted(names), 1)}
            for kind, names in found.items()
        }
        inside = {name: new for kind in _NAMED for name, new in self._stand_ins.get(kind, {}).items()}
        names = sorted(inside, key=len, reverse=True)
        self._inside = inside
        self._pattern = re.compile(
            "(?<![A-Za-z0-9_.-])(" + "|".join(map(re.escape, names)) + ")(?![A-Za-z0-9_.-])" if names else "(?!)"
        )

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Redaction":
        """Learn every name the records hold."""
        found: dict[str, set[str]] = {}

        def note(kind: str, text: str) -> str:
            found.setdefault(kind, set()).add(text)
            return text

        for record in records:
            _rewrite(parse_json(record.body), record.event.type, note, str)
        # A copy's holder is a node, or a durable checkpoint's own id.
        found.get("node", set()).difference_update(found.get("checkpoint", set()))
        return cls(found)

    def body(self, record: Record) -> bytes:
        """The record's canonical body with every name replaced."""
        said = _rewrite(parse_json(record.body), record.event.type, self._stand_in, self._text)
        plan = said["data"].get("plan")
        if isinstance(plan, dict) and "plan_id" in plan:
            old, new = plan["plan_id"], Plan.id_of(plan)  # a plan's id is the digest of what it says
            plan["plan_id"] = new
            said["event_id"] = said["event_id"].replace(old, new)
        return canonical_bytes(said)

    def epoch(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row of `epochs`: who held the lease, and where."""
        return row | {"holder": self._text(row["holder"]), "address": "redacted"}

    def _stand_in(self, kind: str, text: str) -> str:
        if kind == "node" and text in self._stand_ins.get("checkpoint", {}):
            kind = "checkpoint"
        return self._stand_ins[kind][text]

    def _text(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._inside[match[1]], text)


def _rewrite(value: Any, type_: str, name: Callable[[str, str], str], text: Callable[[str], str], key: str = "") -> Any:
    """`value` with `name(kind, ...)` for each name in it and `text(...)` for each string that may hold names."""
    if isinstance(value, dict):
        return {inner: _rewrite(item, type_, name, text, inner) for inner, item in value.items()}
    if isinstance(value, list):
        return [_rewrite(item, type_, name, text, key) for item in value]
    if not isinstance(value, str):
        return value
    if key == "source" and (value == "decider" or value.startswith("operator:")):
        return value if value == "decider" else "operator:" + name("person", value.partition(":")[2])
    kind = _KIND_OF_KEY.get(key)
    if key == "reason" and type_ in _FREE_TEXT_TYPES:
        kind = "text"
    if kind == "text" and _CODE.fullmatch(value):
        return value
    if kind is not None:
        return name(kind, value)
    return text(value) if key in _INSIDE else value
