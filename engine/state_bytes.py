"""A folded state as canonical bytes, and back: what a snapshot keeps, so that nobody need fold a log from its start.

The layout follows from the classes of `state.py`. Dictionaries become lists of pairs in their own order and sets sorted
lists, so that equal folds give equal bytes on every machine and under every hash seed. The bytes name their format and
the fields of the classes: a version whose state has other fields refuses them instead of misreading them.
"""

import hashlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

from lmr.engine.canonical import canonical_bytes, parse_canonical
from lmr.engine.errors import NotCanonical, StateUnreadable
from lmr.engine.state import State

STATE_FORMAT = 1
_UnionType = type(int | None)


def state_bytes(state: State) -> bytes:
    """The canonical bytes of a state; equal states that came from equal records have equal bytes."""
    return canonical_bytes({"lmr_state": STATE_FORMAT, "layout": layout(), "state": _plain(state)})


def state_of(data: bytes) -> State:
    """The state of `state_bytes`, equal in every field to the one they were made of.

    Raises:
        StateUnreadable: not such bytes, or those of a version whose state is laid out otherwise.
    """
    try:
        said = parse_canonical(data)
    except NotCanonical as error:
        raise StateUnreadable(f"not the bytes of a state: {error}") from error
    if not isinstance(said, dict) or not isinstance(said.get("lmr_state"), int):
        raise StateUnreadable("not the bytes of a state")
    if said["lmr_state"] != STATE_FORMAT or said.get("layout") != layout():
        raise StateUnreadable("made by a version whose state has other fields; read it with that version")
    try:
        state: State = _reader(State)(said.get("state"))
    except (ValidationError, TypeError, ValueError, KeyError, LookupError) as error:
        raise StateUnreadable(f"damaged: {error}") from error
    return state


@cache
def layout() -> str:
    """Hex SHA-256 of every class of the state with its fields and their types."""
    seen: dict[str, dict[str, str]] = {}
    _describe(State, seen)
    return hashlib.sha256(canonical_bytes(seen)).hexdigest()


def _describe(kind: Any, seen: dict[str, dict[str, str]]) -> None:
    if _has_fields(kind):
        if kind.__name__ in seen:
            return
        hints = _hints(kind)
        seen[kind.__name__] = {name: _name(hint) for name, hint in hints.items()}
        for hint in hints.values():
            _describe(hint, seen)
    for part in get_args(kind):
        _describe(part, seen)


def _name(kind: Any) -> str:
    """A type in words that are the same under every Python."""
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return "|".join(map(str, parts))
    if not parts:
        return "None" if kind is type(None) else str(getattr(kind, "__name__", kind))
    if get_origin(kind) in (Union, _UnionType):
        return "|".join(map(_name, parts))
    return f"{get_origin(kind).__name__}[{','.join(map(_name, parts))}]"


def _has_fields(kind: Any) -> bool:
    return is_dataclass(kind) or (isinstance(kind, type) and hasattr(kind, "_fields"))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
    hints = get_type_hints(kind)
    return {name: hints[name] for name in names}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if _has_fields(type(value)):
        kind: Any = type(value)
        return {name: _plain(getattr(value, name)) for name in _hints(kind)}
    if isinstance(value, dict):
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=canonical_bytes)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise TypeError(f"no bytes for {type(value).__name__}")


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """What makes a value of that type from its plain form."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind in (int, str, bool):
        return lambda said: _exactly(kind, said)
    if origin is Literal:
        return lambda said: parts[parts.index(said)]
    if origin in (Union, _UnionType):
        (some,) = (part for part in parts if part is not type(None))
        return lambda said: None if said is None else _reader(some)(said)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_validate
    if _has_fields(kind):
        return lambda said: kind(**{name: _reader(hint)(said[name]) for name, hint in _hints(kind).items()})
    if origin is dict:
        return lambda said: {_reader(parts[0])(key): _reader(parts[1])(item) for key, item in said}
    if origin is tuple and parts[-1] is not Ellipsis:
        return lambda said: tuple(_reader(part)(item) for part, item in zip(parts, said, strict=True))
    if origin in (list, set, frozenset, tuple):
        return lambda said: origin(map(_reader(parts[0]), said))
    raise TypeError(f"no reader for {kind}")


def _exactly(kind: type, said: Any) -> Any:
    if type(said) is not kind:
        raise TypeError(f"{said!r} is no {kind.__name__}")
    return said
