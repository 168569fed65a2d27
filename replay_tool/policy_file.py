"""A policy from a TOML file: the `[recovery]` table of a worker policy, or a file that is that table alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lmr.engine.errors import PolicyInvalid
from lmr.engine.policy import RecoveryPolicy
from lmr.replay_tool.errors import PolicyFileInvalid, Unreadable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_WORKER_KEYS = {
    "schema_version",
    "interval",
    "enable_checkpoint",
    "enable_detection",
    "checkpoint",
    "replay",
    "recovery",
}


def read_policy(path: Path) -> RecoveryPolicy:
    """The recovery policy a file deploys; a key it leaves out has its default.

    Raises:
        Unreadable: no such file.
        PolicyFileInvalid: naming the file, the key and what is allowed.
    """
    table = _table(path, _toml(path))
    try:
        return RecoveryPolicy.from_table(table)
    except PolicyInvalid as error:
        if error.key not in RecoveryPolicy.model_fields:
            allowed = ", ".join(sorted(RecoveryPolicy.model_fields))
            raise PolicyFileInvalid(f"{path}: unknown key 'recovery.{error.key}'; allowed: {allowed}") from error
        given, allowed = table[error.key], error.why.replace("Input should be ", "")
        raise PolicyFileInvalid(f"{path}: key 'recovery.{error.key}' is {given!r}; allowed: {allowed}") from error


def unchecked_keys(path: Path) -> list[str]:
    """The keys of a worker policy that the engine does not know, and whose values `read_policy` does not look at.

    Raises:
        Unreadable, PolicyFileInvalid: see `read_policy`.
    """
    return sorted(set(_toml(path)) & (_WORKER_KEYS - {"schema_version", "recovery"}))


def _toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise Unreadable(str(path), (error.strerror or str(error)).lower()) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyFileInvalid(f"{path}: not TOML: {error}") from error


def _table(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    if "recovery" not in document and not (set(document) & _WORKER_KEYS):
        return document  # the table itself
    unknown = sorted(set(document) - _WORKER_KEYS)
    if unknown:
        known = ", ".join(sorted(_WORKER_KEYS))
        raise PolicyFileInvalid(f"{path}: unknown key '{unknown[0]}'; allowed: {known}")
    if document.get("schema_version", 1) != 1:
        raise PolicyFileInvalid(f"{path}: key 'schema_version' is {document['schema_version']!r}; allowed: 1")
    table = document.get("recovery", {})
    if not isinstance(table, dict):
        raise PolicyFileInvalid(f"{path}: key 'recovery' is {table!r}; allowed: a table")
    return table
