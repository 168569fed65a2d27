"""Canonical bytes: RFC 8785 for values without floats.

Two writers, two Python versions or two databases must hash the same fact to the same bytes. Allowed are null, booleans,
integers below 2^53, strings, arrays and objects with string keys.
"""

import json
from collections.abc import Mapping
from typing import Any

from lmr.engine.errors import NotCanonical

MAX_INTEGER = 2**53 - 1
"""Largest magnitude every JSON reader keeps exactly (RFC 8785 section 3.2.2.3, I-JSON)."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_encode_sorted = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True).encode


def canonical_bytes(value: Any) -> bytes:
    """The one byte string of `value`.

    Raises:
        NotCanonical: a float, an integer of 2^53 or above, a lone surrogate, a key that is no string, another type.
    """
    try:
        text = _encode_sorted(value) if _plain(value) else _encode(_ordered(value, "$"))
        return text.encode("utf-8")
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


def _plain(value: Any) -> bool:
    """True for allowed values whose keys are ASCII: the standard encoder orders those as RFC 8785 does."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-MAX_INTEGER <= value <= MAX_INTEGER)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii():
                return False
            # Most values are strings: asked here, they cost no call.
            if type(item) is not str and not _plain(item):
                return False
        return True
    return (kind is list or kind is tuple) and all(map(_plain, value))


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
