"""What goes into a script's own checkpoint, and a shard put together from it again, byte for byte."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint

from lmr.integrations.frameworks.pytorch import durable
from lmr.integrations.gemini.capture import Collection, ShardReader
from lmr.integrations.gemini.errors import DurableUnreadable

TREE = b'{"step": 7, "rng": [1, 2, 3]}'


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return {"w": torch.randn(64, 32), "b": torch.randn(32, dtype=torch.bfloat16), "empty": torch.empty(0, 3)}


@pytest.fixture
def saved(tmp_path: Path, weights: dict[str, torch.Tensor]) -> tuple[str, dict[str, torch.Tensor], Collection]:
    """A checkpoint of a script that names its weights only; its state has two more tensors."""
    collection = Collection()
    for name, tensor in weights.items():
        collection.add(f"model.0.{name}", tensor, "shared")
    collection.add("optimizer.0.moment", torch.randn(64, 32), "shared")
    collection.add("rng", torch.arange(5), "own")
    script = {"model": dict(weights), "epoch": 3}
    more = durable.rest(0, collection, TREE, durable._named(script), peers=[0], everybody=[0])
    where = str(tmp_path / "checkpoint")
    checkpoint.save({**script, **more}, checkpoint_id=where, no_dist=True)
    return where, more, collection


def test_a_shard_comes_back_byte_for_byte(saved) -> None:
    where, _, collection = saved
    meta, memory = durable.read(where, 0)
    reader = ShardReader(memory, meta)
    assert reader.tree == {"step": 7, "rng": [1, 2, 3]}
    for name, tensor in zip(collection.names, collection.tensors, strict=True):
        found = reader.fresh(name)
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor), name
    assert isinstance(memory, mmap.mmap)


def test_what_the_script_saves_itself_is_not_written_twice(saved) -> None:
    _, more, _ = saved
    assert sorted(more) == ["lm_resiliency.0.meta", "lm_resiliency.0.optimizer.0.moment", "lm_resiliency.0.rng"]


@pytest.mark.parametrize(
    ("rank", "peers", "keys"),
    [
        (3, [0, 1, 2, 3], ["lm_resiliency.0.moment", "lm_resiliency.3.running_mean"]),
        (3, [1, 3], ["lm_resiliency.1.moment", "lm_resiliency.1.weight", "lm_resiliency.3.running_mean"]),
        (3, [3], ["lm_resiliency.3.moment", "lm_resiliency.3.running_mean", "lm_resiliency.3.weight"]),
    ],
    ids=["all ranks alike", "peers of one part alike", "nobody alike"],
)
def test_ranks_share_a_key_only_for_what_they_hold_alike(rank, peers, keys) -> None:
    """A script's own keys are written once for all ranks: what is a rank's own, it saves with us besides."""
    weight, running_mean = torch.randn(4), torch.randn(4)
    collection = Collection()
    collection.add("weight", weight, "shared")
    collection.add("running_mean", running_mean, "own")
    collection.add("moment", torch.randn(4), "shared")
    named = durable._named({"weight": weight, "running_mean": running_mean})
    more = durable.rest(rank, collection, TREE, named, peers, everybody=[0, 1, 2, 3])
    assert more.keys() == {*keys, "lm_resiliency.3.meta"}


def test_a_script_loads_its_checkpoint_as_if_nothing_else_were_there(saved, weights) -> None:
    where, _, _ = saved
    target = {"model": {name: torch.zeros_like(tensor) for name, tensor in weights.items()}, "epoch": 0}
    checkpoint.load(target, checkpoint_id=where, no_dist=True)
    assert target["epoch"] == 3
    assert all(torch.equal(target["model"][name], tensor) for name, tensor in weights.items())


def no_metadata(where: Path) -> None:
    (where / ".metadata").unlink()


def no_data(where: Path) -> None:
    for path in where.glob("*.distcp"):
        path.unlink()


def cut_off(where: Path) -> None:
    for path in where.glob("*.distcp"):
        path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize(
    ("damage", "why"), [(no_metadata, "missing"), (no_data, "missing"), (cut_off, "digest_mismatch")]
)
def test_a_checkpoint_that_cannot_be_read_is_named_with_the_reason(saved, damage, why) -> None:
    where, _, _ = saved
    damage(Path(where))
    with pytest.raises(DurableUnreadable) as error:
        durable.read(where, 0)
    assert (error.value.why, error.value.checkpoint_id) == (why, where)


def test_a_rank_that_had_no_part_in_it_has_no_state_there(saved) -> None:
    where, _, _ = saved
    with pytest.raises(DurableUnreadable, match="rank 5 has no state there"):
        durable.read(where, 5)
