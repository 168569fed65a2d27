"""State goes back only onto the ranks, meshes and placements it came from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from lmr.integrations.frameworks.pytorch.sharding import match_topology, topology
from lmr.integrations.gemini.errors import ShardMismatch


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """This process as rank 0 of 4; nothing is sent anywhere."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def part(ranks: list[list[int]], *placements: object) -> list[tuple[str, torch.Tensor]]:
    mesh = DeviceMesh("cpu", ranks)
    return [("weight", DTensor.from_local(torch.zeros(2, 2), mesh, placements, run_check=False))]


def test_the_same_layout_is_taken(four_ranks: None) -> None:
    one, other = (topology(part([[0, 1], [2, 3]], Replicate(), Shard(0))) for _ in range(2))
    match_topology(one, other)


@pytest.mark.parametrize(
    ("ranks", "placements"),
    [([[0, 2], [1, 3]], (Replicate(), Shard(0))), ([[0, 1], [2, 3]], (Shard(0), Replicate()))],
    ids=["mesh", "placements"],
)
def test_parts_of_equal_shape_in_other_places_are_refused(
    four_ranks: None, ranks: list[list[int]], placements: tuple[object, ...]
) -> None:
    captured = topology(part([[0, 1], [2, 3]], Replicate(), Shard(0)))
    with pytest.raises(ShardMismatch, match="topology_mismatch: the meshes or placements"):
        match_topology(captured, topology(part(ranks, *placements)))


def test_another_number_of_ranks_is_refused(four_ranks: None) -> None:
    captured = topology([])
    with pytest.raises(ShardMismatch, match="captured on 4 ranks, restored on 2: state is not resharded"):
        match_topology(captured, {**captured, "world_size": 2})
