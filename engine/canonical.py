"""Canonical bytes: RFC 8785 for values without floats.

Two writers, two Python versions or two databases must hash the same fact to the same bytes. Allowed are null, booleans,
integers below 2^53, strings, arrays and objects with string keys.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from lmr.engine.errors import NotCanonical

MAX_INTEGER = 2**53 - 1
"""Largest magnitude every JSON reader keeps exactly (RFC 8785 section 3.2.2.3, I-JSON)."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def canonical_bytes(value: Any) -> bytes:
    """The one byte string of `value`.

    Raises:
        NotCanonical: a float, an integer of 2^53 or above, a lone surrogate, a key that is no string, another type.
    """
    try:
        try:
            ordered = _sorted(value)
        except (_Unusual, TypeError):
            ordered = _ordered(value, "$")
        try:
            return to_json(ordered)
        except ValueError:  # a lone surrogate, or deeper than it goes
            return _encode(ordered).encode("utf-8")
    except UnicodeEncodeError as error:
        raise NotCanonical("$", "a string holds a lone surrogate") from error
    except RecursionError as error:
        raise NotCanonical("$", "nested too deeply") from error


def parse_canonical(data: bytes) -> Any:
    """The value of canonical bytes.

    Raises:
        NotCanonical: the bytes are not JSON, or not the canonical bytes of what they say.
    """
    value = parse_json(data)
    if canonical_bytes(value) != data:
        raise NotCanonical("$", "not in canonical form")
    return value


def parse_json(data: bytes | str) -> Any:
    """The value of JSON text in any form, floats and duplicate keys refused.

    Raises:
        NotCanonical: not JSON, a float, or a key that appears twice.
    """
    try:
        return _decoder.decode(data if isinstance(data, str) else data.decode("utf-8"))
    except (UnicodeDecodeError, RecursionError) as error:
        raise NotCanonical("$", f"unreadable text: {error}") from error
    except json.JSONDecodeError as error:
        raise NotCanonical("$", f"not JSON: {error.msg} at {error.pos}") from error


class _Unusual(Exception):
    """Not to be written the quick way: what is wrong with it, if anything is, the careful way says."""


def _sorted(value: Any) -> Any:
    """The value with its keys in order, where they are ASCII: those RFC 8785 orders as Python does."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return value
    elif kind is dict:
        keys = sorted(value)
        if "".join(keys).isascii():
            ordered = {}
            for key in keys:
                item = value[key]
                # Most values are strings and numbers: asked here, they cost no call.
                sort = type(item)
                if sort is str or (sort is int and -MAX_INTEGER <= item <= MAX_INTEGER):
                    ordered[key] = item
                else:
                    ordered[key] = _sorted(item)
            return ordered
    elif kind is list or kind is tuple:
        return list(map(_sorted, value))
    raise _Unusual


def _ordered(value: Any, path: str) -> Any:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return value
        raise NotCanonical(path, f"integer {value} is 2^53 or above")
    if isinstance(value, Mapping):
        return _ordered_object(value, path)
    if kind is list or kind is tuple:
        return [_ordered(item, path) for item in value]
    raise NotCanonical(path, f"{kind.__name__} has no canonical form")


def _ordered_object(value: Mapping[Any, Any], path: str) -> dict[str, Any]:
    for key in value:
        if type(key) is not str:
            raise NotCanonical(path, f"key {key!r} is no string")
    ascii_only = all(key.isascii() for key in value)
    # RFC 8785 orders by UTF-16 code units; for ASCII that is the order Python gives.
    keys = sorted(value) if ascii_only else sorted(value, key=_utf16)
    return {key: _ordered(value[key], f"{path}.{key}") for key in keys}


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _no_float(text: str) -> Any:
    raise NotCanonical("$", f"{text} is a float")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise NotCanonical("$", "a key appears twice")
    return value


_decoder = json.JSONDecoder(parse_float=_no_float, parse_constant=_no_float, object_pairs_hook=_unique)
