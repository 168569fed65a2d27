"""Copies that go on: what reaches the buffer, what is found to have been written to, and what is not copied again."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lmr.integrations.gemini.capture import Change, Collection, ShardReader, ShardWriter, Unfinished
from lmr.integrations.gemini.copying import Copier, StreamCopier, ThreadCopier, copy_all
from lmr.integrations.gemini.errors import CopyFailed
from lmr.integrations.gemini.pace import BAD_IN_A_ROW, LEAST_BYTES, PAUSE_CAPTURES, Pace


class FakeStream:
    """Runs what is queued when it is synchronized, on the host."""

    def wait_stream(self, other: Any) -> None:
        pass


class FakeEvent:
    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class FakeDevice:
    """A double of `torch.cuda`: the same calls, on host memory. It shows nothing about streams."""

    Stream, Event = FakeStream, FakeEvent

    def __init__(self) -> None:
        self.registered: list[int] = []

    def current_stream(self) -> FakeStream:
        return FakeStream()

    def stream(self, stream: Any) -> Any:
        return torch.no_grad()

    def cudart(self) -> FakeDevice:
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> None:
        self.registered.append(address)

    def cudaHostUnregister(self, address: int) -> None:
        self.registered.remove(address)


class HeldCopier:
    """Copies when it is let go: a copy that takes as long as a test wants."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def start(self, places: list[torch.Tensor], tensors: list[torch.Tensor]) -> Any:
        return HeldCopy(self.go, places, tensors)


class HeldCopy:
    def __init__(self, go: threading.Event, places: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
        self.go, self.places, self.tensors = go, places, tensors

    def done(self) -> bool:
        return self.go.is_set()

    def wait(self, timeout_s: float) -> bool:
        copy_all(self.places, self.tensors)
        return True


@pytest.mark.parametrize("make", [ThreadCopier, lambda: StreamCopier(FakeDevice())], ids=["thread", "stream"])
def test_every_copier_copies_all_kinds_of_tensors(make: Callable[[], Copier]) -> None:
    tensors = [torch.randn(100, 100), torch.arange(7), torch.randn(6, 4).t(), torch.tensor(3.0), torch.empty(0)]
    places = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]
    copier = make()
    for _ in range(2):
        copy = copier.start(places, tensors)
        assert copy.wait(30)
        assert copy.done()
        assert all(torch.equal(place, tensor) for place, tensor in zip(places, tensors, strict=True))


def test_a_copy_that_fails_says_so() -> None:
    copy = ThreadCopier().start([torch.zeros(2)], [torch.zeros(3)])
    with pytest.raises(CopyFailed, match="the copy failed"):
        copy.wait(30)


def test_a_buffer_is_pinned_once_until_it_is_forgotten() -> None:
    device = FakeDevice()
    copier, whole = StreamCopier(device), torch.zeros(64, dtype=torch.uint8)
    for _ in range(3):
        copier.start([whole[:32], whole[32:]], [torch.ones(32, dtype=torch.uint8)] * 2)
    assert device.registered == [whole.data_ptr()]
    copier.forget()
    assert device.registered == []


class Shard:
    """A writer with one model's tensors, and one buffer."""

    def __init__(self, *tensors: tuple[str, torch.Tensor, Change]) -> None:
        self.tensors = tensors
        self.writer = ShardWriter(0, require_finite=True)
        self.copier = HeldCopier()
        self.writer._host = self.copier  # type: ignore[assignment]
        self.memory: dict[int, mmap.mmap] = {}

    def write(self, number: int = 1, *, background: bool = True) -> Unfinished:
        collection = Collection()
        for name, tensor, changes in self.tensors:
            collection.add(name, tensor, "own", changes)
        self.meta = self.writer.plan(collection, b"{}")
        memory = self.memory.setdefault(number, mmap.mmap(-1, self.meta.total_bytes))
        return self.writer.write(number, memory, collection, b"{}", self.meta, background=background)

    def read(self, name: str, number: int = 1) -> torch.Tensor:
        return ShardReader(self.memory[number], self.meta).fresh(name)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_restore_is_complete_after_the_wait_however_many_threads_copy(threads: int) -> None:
    """What is decoded from the tree may be read at once; a tensor that is a parameter takes gradients as before."""
    tensors = {f"large.{i}": torch.rand(300_000) for i in range(4)} | {"small": torch.rand(3)}
    shard = Shard(*((name, tensor, "anywhere") for name, tensor in tensors.items()))
    shard.write(background=False)
    reader = ShardReader(shard.memory[1], shard.meta, threads)
    live = {name: nn.Parameter(torch.zeros_like(tensor)) for name, tensor in tensors.items()}
    for name, target in live.items():
        reader.copy_into(name, target)
    later = {name: reader.fresh(name, target, later=True) for name, target in live.items()}
    decoded = reader.decode({"state": {"$tensor": "large.3"}})["state"]
    assert torch.equal(decoded, tensors["large.3"])
    reader.wait()
    for name, tensor in tensors.items():
        assert torch.equal(live[name], tensor)
        assert torch.equal(later[name], tensor)
        assert live[name].requires_grad
        assert live[name].is_leaf


def write_in_place(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.mul_(2)


def write_through_data(weight: torch.Tensor) -> None:
    weight.data.mul_(2)


def write_new_data(weight: torch.Tensor) -> None:
    weight.data = weight.data * 2


def write_in_a_fused_step(weight: torch.Tensor) -> None:
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], fused=True).step()


WRITES = [write_in_place, write_through_data, write_new_data, write_in_a_fused_step]


def test_what_forward_changes_is_copied_at_once_and_the_rest_until_it_is_waited_for() -> None:
    weight, running = nn.Parameter(torch.randn(50, 3)), torch.randn(5)
    shard = Shard(("weight", weight, "step"), ("running", running, "anywhere"))
    began, then = shard.write(), running.clone()
    running.add_(1)
    assert not began.done()
    assert torch.equal(shard.read("running"), then)
    assert began.wait(30)
    assert began.intact()
    assert torch.equal(shard.read("weight"), weight)
    assert torch.equal(shard.read("running"), then)


@pytest.mark.parametrize("write", WRITES)
def test_a_write_during_the_copy_is_found_out(write: Callable[[torch.Tensor], None]) -> None:
    weight = nn.Parameter(torch.randn(50, 3))
    began = Shard(("weight", weight, "step")).write()
    write(weight)
    assert began.wait(30)
    assert not began.intact()


def test_a_write_to_a_distributed_tensor_is_found_out() -> None:
    import torch.distributed as dist
    from torch.distributed.tensor import distribute_tensor

    store = dist.HashStore()
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        weight = nn.Parameter(distribute_tensor(torch.randn(50, 3), dist.init_device_mesh("cpu", (1,))))
        shard = Shard(("weight", weight, "step"))
        assert shard.write().intact()
        began = shard.write()
        write_in_place(weight)
        assert not began.intact()
    finally:
        dist.destroy_process_group()


def test_inference_tensors_are_copied_at_once() -> None:
    """Nobody counts the writes to them."""
    with torch.inference_mode():
        weight = torch.randn(5)
    shard = Shard(("weight", weight, "step"))
    assert shard.write().done()
    assert torch.equal(shard.read("weight"), weight)


def test_frozen_parameters_are_copied_once_a_buffer() -> None:
    frozen = nn.Parameter(torch.randn(300, 300), requires_grad=False)
    shard = Shard(("frozen", frozen, "never"), ("weight", nn.Parameter(torch.randn(5)), "step"))
    for number in (1, 2, 1, 2, 1):
        shard.write(number, background=False)
        assert torch.equal(shard.read("frozen", number), frozen)
    assert shard.writer.frozen.reused == 3


def test_after_a_vault_was_lost_the_same_number_is_other_memory() -> None:
    """The next vault counts its buffers from 1 again."""
    frozen, weight = nn.Parameter(torch.randn(300, 300), requires_grad=False), nn.Parameter(torch.randn(5))
    shard = Shard(("frozen", frozen, "never"), ("weight", weight, "step"))
    shard.write(background=False)
    shard.writer.forget()
    shard.memory.clear()
    write_in_place(weight)
    shard.write(background=False)
    assert torch.equal(shard.read("frozen"), frozen)
    assert torch.equal(shard.read("weight"), weight)
    assert shard.writer.frozen.reused == 0


@pytest.mark.parametrize("write", WRITES[:3])
def test_a_frozen_parameter_that_was_written_to_is_copied_again(write: Callable[[torch.Tensor], None]) -> None:
    frozen = nn.Parameter(torch.randn(300, 300), requires_grad=False)
    shard = Shard(("frozen", frozen, "never"))
    for _ in range(3):
        shard.write(background=False)
        write(frozen)
    shard.write(background=False)
    assert torch.equal(shard.read("frozen"), frozen)
    assert shard.writer.frozen.reused == 0


def test_a_write_that_left_no_trace_ends_the_reuse() -> None:
    """One element between the sampled ones, through `.data`: the slices that are compared come by."""
    frozen = nn.Parameter(torch.randn(300, 300), requires_grad=False)
    shard = Shard(("frozen", frozen, "never"))
    shard.write(background=False)
    frozen.data.view(-1)[77_777] += 1
    for _ in range(2):
        shard.write(background=False)
    assert shard.writer.frozen.betrayed
    assert torch.equal(shard.read("frozen"), frozen)
    shard.write(background=False)
    assert shard.writer.frozen.reused == 1


def test_auto_learns_what_a_copy_costs_then_copies_in_the_background() -> None:
    pace = Pace("auto")
    assert not pace.background(LEAST_BYTES)
    pace.was_foreground(LEAST_BYTES, 0.01)
    assert pace.background(LEAST_BYTES)
    assert not pace.background(LEAST_BYTES - 1)


def test_auto_goes_back_to_the_foreground_where_the_loop_waits_all_the_same() -> None:
    pace = Pace("auto")
    pace.was_foreground(LEAST_BYTES, 0.01)
    for _ in range(BAD_IN_A_ROW):
        assert pace.background(LEAST_BYTES)
        pace.was_background(LEAST_BYTES, 0.009, intact=True)
    assert [pace.background(LEAST_BYTES) for _ in range(PAUSE_CAPTURES + 1)] == [False] * PAUSE_CAPTURES + [True]


@pytest.mark.parametrize("mode", ["auto", "background"])
def test_a_torn_copy_is_not_risked_again_at_once(mode: Any) -> None:
    pace = Pace(mode)
    pace.was_foreground(LEAST_BYTES, 0.01)
    pace.was_background(LEAST_BYTES, 0.0, intact=False)
    assert not pace.background(LEAST_BYTES)


def test_the_foreground_can_be_insisted_on() -> None:
    pace = Pace("foreground")
    pace.was_foreground(LEAST_BYTES, 0.01)
    assert not pace.background(1 << 40)
