"""One way from any verb's answer to JSON: frozen dataclasses, pydantic models and containers of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from pydantic import BaseModel

from lmr.replay_tool.standard_output import is_unicode


def plain(value: object) -> Any:
    """`value` as dicts, lists, strings, ints, bools and None; dataclass fields named `_...` stay inside."""
    match value:
        case BaseModel():
            return plain(value.model_dump(mode="json"))
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted(plain(item) for item in value)
        case bytes():
            return value.decode()
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {
                field.name: plain(getattr(value, field.name))
                for field in dataclasses.fields(value)
                if not field.name.startswith("_")
            }
        case _:
            return value


def one_line(value: object) -> str:
    """`value` as one line of JSON with sorted keys kept in their declared order."""
    return json.dumps(plain(value), ensure_ascii=not is_unicode(), separators=(", ", ": "))


def document(value: object) -> str:
    """`value` as an indented JSON document."""
    return json.dumps(plain(value), ensure_ascii=not is_unicode(), indent=2)
