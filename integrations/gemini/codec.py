"""Training state that is not a tensor, as JSON.

Schedulers, scalers, hyperparameters, RNG states and positions are small trees of plain values. They travel as JSON with
tags for what JSON lacks, never as pickle: bytes that come from another machine are data, not programs. A tensor inside
a tree is left to the caller, who stores its bytes and is given its name back on the way in.

A tagged value is an object with one key that begins with `$`; an ordinary dict with such a key is tagged itself.
"""

from __future__ import annotations

import base64
import collections
import json
import math
import sys
from collections.abc import Callable
from typing import Any

from lmr.integrations.gemini.errors import StateUnknown

StoreTensor = Callable[[Any, str], str]
"""Takes a tensor and its path; returns the name it can be fetched by."""
FetchTensor = Callable[[str], Any]

_FACTORIES: dict[str, Callable[[], Any]] = {
    "int": int,
    "float": float,
    "list": list,
    "dict": dict,
    "set": set,
    "str": str,
}


def encode(value: Any, path: str, store: StoreTensor) -> Any:
    """A JSON tree of `value`.

    Args:
        value: the state.
        path: where it stands, for messages and tensor names.
        store: called for each tensor.

    Raises:
        StateUnknown: an object this codec does not know.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [encode(item, f"{path}.{i}", store) for i, item in enumerate(value)]
    if kind is dict:
        return _encode_dict(value, path, store)
    if kind in _ENCODERS:
        return _ENCODERS[kind](value, path, store)
    if kind in _PLAIN:
        return _encode_plain(value)
    return _encode_foreign(value, path, store)


def decode(tree: Any, fetch: FetchTensor) -> Any:
    """The value `encode` was given, with tensors as `fetch` returns them.

    Raises:
        ValueError: a tag this codec does not know.
    """
    if isinstance(tree, list):
        return [decode(item, fetch) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        (tag,) = tree
        if tag.startswith("$"):
            if tag == "$tensor":
                return fetch(tree[tag])
            if tag in _NESTED:
                return _NESTED[tag](tree[tag], fetch)
            if tag in _FLAT:
                return _FLAT[tag](tree[tag])
            raise ValueError(f"unknown tag {tag}")
    return {key: decode(item, fetch) for key, item in tree.items()}


def dumps(tree: Any) -> bytes:
    """An encoded tree as bytes."""
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()


def _encode_dict(value: dict[Any, Any], path: str, store: StoreTensor) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: encode(item, f"{path}.{key}", store) for key, item in value.items()}
    return {"$dict": _pairs(value, path, store)}


def _pairs(value: dict[Any, Any], path: str, store: StoreTensor) -> list[Any]:
    return [[encode(key, f"{path}.key", store), encode(item, f"{path}.{key}", store)] for key, item in value.items()]


def _encode_defaultdict(value: Any, path: str, store: StoreTensor) -> Any:
    factory = getattr(value.default_factory, "__name__", None)
    if factory is not None and _FACTORIES.get(factory) is not value.default_factory:
        raise StateUnknown(path, f"defaultdict of {value.default_factory!r}")
    return {"$defaultdict": [factory, _pairs(value, path, store)]}


def _items(value: Any, path: str, store: StoreTensor) -> list[Any]:
    return [encode(item, f"{path}.{i}", store) for i, item in enumerate(value)]


def _encode_plain(value: Any) -> Any:
    """Values with a tag of their own that hold no further state; None for all others."""
    match value:
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case bytearray():
            return {"$bytearray": base64.b64encode(value).decode()}
        case complex():
            return {"$complex": [repr(value.real), repr(value.imag)]}
        case range():
            return {"$range": [value.start, value.stop, value.step]}
    return None


_ENCODERS: dict[type, Callable[[Any, str, StoreTensor], Any]] = {
    tuple: lambda v, p, s: {"$tuple": _items(v, p, s)},
    set: lambda v, p, s: {"$set": _items(v, p, s)},
    frozenset: lambda v, p, s: {"$frozenset": _items(v, p, s)},
    collections.OrderedDict: lambda v, p, s: {"$ordered": _pairs(v, p, s)},
    collections.Counter: lambda v, p, s: {"$counter": _pairs(v, p, s)},
    collections.defaultdict: _encode_defaultdict,
    collections.deque: lambda v, p, s: {"$deque": [v.maxlen, _items(v, p, s)]},
}
_PLAIN = (bytes, bytearray, complex, range)


def _encode_foreign(value: Any, path: str, store: StoreTensor) -> Any:
    """Values of torch and numpy, if the process has loaded those."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None:
        if isinstance(value, torch.Tensor):
            return {"$tensor": store(value, path)}
        if isinstance(value, torch.Size):
            return {"$size": list(value)}
        if isinstance(value, torch.dtype | torch.device):
            return {"$dtype" if isinstance(value, torch.dtype) else "$device": str(value)}
    if numpy is not None and isinstance(value, numpy.generic | numpy.ndarray) and not value.dtype.hasobject:
        body = base64.b64encode(value.tobytes()).decode()
        tag = "$scalar" if isinstance(value, numpy.generic) else "$array"
        return {tag: [value.dtype.str, list(value.shape), body]}
    raise StateUnknown(path, f"{type(value).__module__}.{type(value).__qualname__}")


def _decode_pairs(pairs: list[Any], fetch: FetchTensor) -> list[tuple[Any, Any]]:
    return [(decode(key, fetch), decode(item, fetch)) for key, item in pairs]


def _decode_items(items: list[Any], fetch: FetchTensor) -> list[Any]:
    return [decode(item, fetch) for item in items]


def _decode_defaultdict(body: list[Any], fetch: FetchTensor) -> Any:
    factory = None if body[0] is None else _FACTORIES[body[0]]
    return collections.defaultdict(factory, _decode_pairs(body[1], fetch))


def _decode_numpy(body: list[Any], *, scalar: bool) -> Any:
    import numpy as np

    array = np.frombuffer(base64.b64decode(body[2]), dtype=np.dtype(body[0])).reshape(body[1]).copy()
    return array[()] if scalar else array


def _decode_torch(name: str, body: Any) -> Any:
    import torch

    if name == "size":
        return torch.Size(body)
    return torch.device(body) if name == "device" else getattr(torch, body.removeprefix("torch."))


_NESTED: dict[str, Callable[[Any, FetchTensor], Any]] = {
    "$tuple": lambda b, f: tuple(_decode_items(b, f)),
    "$set": lambda b, f: set(_decode_items(b, f)),
    "$frozenset": lambda b, f: frozenset(_decode_items(b, f)),
    "$dict": lambda b, f: dict(_decode_pairs(b, f)),
    "$ordered": lambda b, f: collections.OrderedDict(_decode_pairs(b, f)),
    "$counter": lambda b, f: collections.Counter(dict(_decode_pairs(b, f))),
    "$defaultdict": _decode_defaultdict,
    "$deque": lambda b, f: collections.deque(_decode_items(b[1], f), maxlen=b[0]),
}
_FLAT: dict[str, Callable[[Any], Any]] = {
    "$float": float,
    "$bytes": base64.b64decode,
    "$bytearray": lambda b: bytearray(base64.b64decode(b)),
    "$complex": lambda b: complex(float(b[0]), float(b[1])),
    "$range": lambda b: range(*b),
    "$scalar": lambda b: _decode_numpy(b, scalar=True),
    "$array": lambda b: _decode_numpy(b, scalar=False),
    "$size": lambda b: _decode_torch("size", b),
    "$dtype": lambda b: _decode_torch("dtype", b),
    "$device": lambda b: _decode_torch("device", b),
}
