"""State that is not a tensor survives the codec with its types, and nothing is ever executed on the way back."""

from __future__ import annotations

import collections
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmr.integrations.gemini import codec
from lmr.integrations.gemini.errors import StateUnknown


def through(value: Any) -> Any:
    tensors: dict[str, Any] = {}

    def store(tensor: Any, path: str) -> str:
        tensors[path] = tensor
        return path

    return codec.decode(json.loads(codec.dumps(codec.encode(value, "state", store))), tensors.__getitem__)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.sets(st.integers() | st.text())
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_values_come_back_equal_and_of_the_same_type(value: Any) -> None:
    back = through(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict([(3, "a"), ("b", 2)]),
        collections.Counter({4: 1, 2: 7}),
        collections.defaultdict(list, {1: [2]}),
        collections.deque([1, 2], maxlen=5),
        frozenset({1, 2}),
        range(2, 9, 3),
        bytearray(b"\x00\xff"),
        torch.float64,
        torch.device("cpu"),
        torch.Size([2, 3]),
        np.float32(0.1),
        np.int64(-5),
        {"$tensor": "a dict that looks like a tag"},
        {True: 1, 2: {"x": (1, {2})}},
    ],
    ids=repr,
)
def test_kinds_of_values(value: Any) -> None:
    back = through(value)
    assert back == value
    assert type(back) is type(value)


def test_details_that_equality_does_not_see() -> None:
    assert math.isnan(through(float("nan")))
    assert math.copysign(1, through(-0.0)) == -1
    assert through(float("inf")) == math.inf
    assert list(through(collections.OrderedDict([("b", 1), ("a", 2)]))) == ["b", "a"]
    assert through(collections.defaultdict(list))["new"] == []
    assert through(collections.deque(maxlen=3)).maxlen == 3
    array = np.arange(6, dtype="<u2").reshape(2, 3)
    assert np.array_equal(through(array), array)
    assert through(array).dtype == array.dtype


def test_tensors_are_left_to_the_caller_under_their_path() -> None:
    paths = []
    tensor = torch.ones(2)

    def store(_tensor: Any, path: str) -> str:
        paths.append(path)
        return path

    tree = codec.encode({"a": [tensor, {"b": tensor}]}, "optimizer.0", store)
    assert paths == ["optimizer.0.a.0", "optimizer.0.a.1.b"]
    assert codec.decode(tree, lambda name: name.upper()) == {"a": ["OPTIMIZER.0.A.0", {"b": "OPTIMIZER.0.A.1.B"}]}


class Custom:
    """Something only its own program knows."""


def test_an_unknown_object_is_named_with_its_place() -> None:
    with pytest.raises(StateUnknown, match=r"scheduler\.0\.best\.1 holds a .*Custom"):
        codec.encode({"best": [1, Custom()]}, "scheduler.0", lambda t, p: p)


def test_an_unknown_tag_is_an_error_not_a_call() -> None:
    with pytest.raises(ValueError, match="unknown tag"):
        codec.decode({"$eval": "print(1)"}, lambda name: name)
