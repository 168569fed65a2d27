"""What is found not to be finite in a shard, whatever the type of its numbers."""

from __future__ import annotations

import mmap

import pytest
import torch

from lmr.integrations.gemini import finite
from lmr.integrations.gemini.capture import Collection, ShardWriter

TYPES = [name for name in sorted(finite._LEAST) if name != "complex32"]


def shard_with(tensor: torch.Tensor, *, trained: bool, require_finite: bool = True) -> str | None:
    collection = Collection()
    collection.add("before", torch.ones(3), "shared", "step")
    collection.add("tensor", tensor, "own", "step" if trained else "anywhere")
    writer = ShardWriter(0, require_finite=require_finite)
    meta = writer.plan(collection, b"{}")
    memory = mmap.mmap(-1, meta.total_bytes)
    writer.write(1, memory, collection, b"{}", meta, background=False)
    return finite.first_nonfinite(memoryview(memory), meta)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_of_number(kind: str) -> None:
    """The largest number, both signs, is finite; one odd element among many is found wherever it is."""
    dtype = getattr(torch, kind)
    limit = torch.finfo(dtype if not dtype.is_complex else torch.empty(0, dtype=dtype).real.dtype).max
    numbers = torch.full((300_000,), limit, dtype=torch.float64)
    numbers[::2] *= -1
    assert shard_with(numbers.to(dtype), trained=True) is None
    for odd in (float("nan"), float("inf"), float("-inf")):
        if kind == "float8_e4m3fn" and odd == odd:
            continue  # this type has no infinities
        for place in (0, 150_001, 299_999):
            spoiled = numbers.clone()
            spoiled[place] = odd
            assert shard_with(spoiled.to(dtype), trained=True) == "tensor"


def test_what_is_not_trained_may_be_infinite() -> None:
    assert shard_with(torch.tensor([float("-inf"), 0.0]), trained=False) is None


def test_whole_numbers_are_not_looked_at() -> None:
    assert shard_with(torch.tensor([-1, 2**62]), trained=True) is None


def test_an_empty_tensor_is_finite() -> None:
    assert shard_with(torch.empty(0), trained=True) is None


def test_the_policy_can_turn_it_off() -> None:
    assert shard_with(torch.tensor([float("nan")]), trained=True, require_finite=False) is None
