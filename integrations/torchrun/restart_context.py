"""The restart context: a small JSON file a node leaves behind, for its next life and for the auditor.

Written atomically and readable by its owner only. The head it names anchors the event log outside the database.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1


def context_path(given: Path, node: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Where this node's context goes: the path as given, or beside it when agents of one machine share the setting.

    Agents that stand for several machines of one host are told apart by `LM_RESILIENCY_NODE_ID`; each writes
    `STEM.NODE.SUFFIX`.
    """
    if given.is_dir():
        return given / f"{node}.json"
    if "LM_RESILIENCY_NODE_ID" not in environ:
        return given
    return given.with_name(f"{given.stem}.{node}{given.suffix or '.json'}")


def closed_outcome(path: Path, run: str) -> tuple[str, int] | None:
    """Reason and exit code of a run that this node has seen closed; None when the context does not say so."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["run"] != run or told.get("closed") is None:
            return None
        return str(told["closed"]["reason"]), int(told["closed"]["exit_code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_context(path: Path, **values: Any) -> None:
    """Replace the file.

    Args:
        path: where.
        values: `run`, `node`, `generation`, `slot`, `plan`, `head`, and `closed` once the run is.

    Raises:
        OSError: the folder cannot be written.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"schema_version": SCHEMA_VERSION, **values}, file, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
