"""Anchors: heads of the log that were kept outside it, in restart contexts and checkpoint manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmr.replay_tool.errors import Unreadable


@dataclass(frozen=True)
class Anchor:
    """A head `(seq, hash)` that was kept outside the log."""

    where: str
    seq: int
    hash: str


def read_anchors(path: Path, run_id: str) -> list[Anchor]:
    """The heads a file names: a restart context, or any JSON or JSONL with `head: {seq, hash}` or `seq` and `hash`.

    Raises:
        Unreadable: no head of this run in it.
    """
    found = [anchor for value in _values(path) for anchor in _heads(path, value, run_id)]
    if not found:
        raise Unreadable(str(path), f"names no head of run {run_id}")
    return found


def _values(path: Path) -> list[Any]:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise Unreadable(str(path), (error.strerror or str(error)).lower()) from error
    except UnicodeDecodeError as error:
        raise Unreadable(str(path), "not text") from error
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise Unreadable(str(path), f"not JSON: {error.msg}") from error


def _heads(path: Path, value: Any, run_id: str) -> Iterator[Anchor]:
    if isinstance(value, list):
        for item in value:
            yield from _heads(path, item, run_id)
    if not isinstance(value, dict) or value.get("run", value.get("run_id", run_id)) != run_id:
        return
    head = value.get("head", value)
    if (
        isinstance(head, dict)
        and type(head.get("seq")) is int
        and isinstance(head.get("hash"), str)
        and head["seq"] > 0
    ):
        yield Anchor(path.name, head["seq"], head["hash"])
