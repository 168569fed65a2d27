"""Writes a rank's training state into granted memory, and reads it back. The torch side of a shard."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import torch

from lmr.integrations.gemini import codec, finite
from lmr.integrations.gemini.copying import Copy, StreamCopier, ThreadCopier, copy_all
from lmr.integrations.gemini.errors import ShardMismatch, StateUnknown
from lmr.integrations.gemini.frozen import FrozenPart
from lmr.integrations.gemini.shard import Entry, Layout, Section, ShardMeta, Wanted, read_entries, read_tree
from lmr.integrations.gemini.traces import Trace, Tracer

Change = Literal["anywhere", "step", "never"]
"""When a tensor is written to: at any time; only while an optimizer steps, as what is trained; not at all."""

_WORTH_A_THREAD_BYTES = 256 * 1024

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a DTensor this rank holds; any other tensor itself."""
    # A DTensor exists only where its module has been imported; capture must not import torch.distributed.
    module = sys.modules.get("torch.distributed.tensor")
    if module is not None and isinstance(tensor, module.DTensor):
        return tensor._local_tensor  # type: ignore[no-any-return]
    return tensor


class Collection:
    """The tensors of one capture, in order, each with its name and section."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.names: list[str] = []
        self.sections: list[Section] = []
        self.owners: list[torch.Tensor] = []
        """Whom the script writes to: of a local part the DTensor, else the tensor itself."""
        self.changes: list[Change] = []
        self.on_device: list[str] = []
        self.parts: list[str] = []
        """Names of those that are a DTensor's local part."""

    def add(self, name: str, tensor: torch.Tensor, section: Section, changes: Change = "anywhere") -> str:
        """Take a tensor in; of a DTensor, the part that is here.

        Args:
            name: unique.
            tensor: any.
            section: whether data-parallel peers hold it alike.
            changes: when somebody may write to it.

        Raises:
            StateUnknown: not a dense, plain tensor.
        """
        part, owner = local(tensor), tensor
        if part is not tensor:
            self.parts.append(name)
            tensor = part
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_quantized:
            raise StateUnknown(name, f"{type(tensor).__name__} ({tensor.layout})")
        self.tensors.append(tensor)
        self.names.append(name)
        self.sections.append(section)
        self.owners.append(owner)
        self.changes.append(changes)
        if tensor.device.type != "cpu":
            self.on_device.append(name)
        return name


class Unfinished:
    """A capture whose copy may still go on. Until it has ended and is `intact`, it is worth nothing."""

    def __init__(self, copies: list[Copy], intact: Callable[[], bool]) -> None:
        self._copies = copies
        self._intact = intact

    def done(self) -> bool:
        """Whether the copy has ended."""
        return all(copy.done() for copy in self._copies)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the copy; False when it has not come within `timeout_s`.

        Raises:
            CopyFailed: it failed.
        """
        deadline = time.monotonic() + timeout_s
        return all(copy.wait(max(0.0, deadline - time.monotonic())) for copy in self._copies)

    def intact(self) -> bool:
        """Whether nobody has written to what was being copied. To be asked by the thread that trains."""
        return self._intact()


class ShardWriter:
    """Remembers the layout, and the places in each buffer, from one capture to the next.

    Args:
        rank: global rank.
        require_finite: whether what is trained is marked as to be finite.
    """

    def __init__(self, rank: int, *, require_finite: bool) -> None:
        self._rank = rank
        self._require_finite = require_finite
        self._signature: list[Any] = []
        self._layout = Layout([])
        self._places: dict[int, list[torch.Tensor]] = {}
        self._host = ThreadCopier()
        self._device: StreamCopier | None = None
        self._trained = Tracer()
        self.frozen = FrozenPart()

    def forget(self) -> None:
        """The buffers are gone, and their numbers may come again for others. To be called when every copy has ended."""
        if self._device is not None:
            self._device.forget()
        self._places.clear()
        self.frozen.forget()

    def plan(self, collection: Collection, tree: bytes) -> ShardMeta:
        """Lay the tensors out; returns the lengths the shard will have."""
        signature = [
            (name, tensor.dtype, tensor.shape, section, changes == "step")
            for name, tensor, section, changes in zip(
                collection.names, collection.tensors, collection.sections, collection.changes, strict=True
            )
        ]
        if signature != self._signature:
            self._layout, self._signature = Layout([self._wanted(*one) for one in signature]), signature
            self._places.clear()
            self.frozen.forget()
        return self._layout.meta(self._rank, len(tree))

    def _wanted(self, name: str, dtype: torch.dtype, shape: torch.Size, section: Section, trained: bool) -> Wanted:
        kind = str(dtype).removeprefix("torch.")
        must_be_finite = trained and self._require_finite and finite.can_be_checked(kind)
        return Wanted(name, kind, tuple(shape), _nbytes(dtype, shape), section, must_be_finite)

    def write(
        self,
        number: int,
        memory: mmap.mmap,
        collection: Collection,
        tree: bytes,
        meta: ShardMeta,
        *,
        background: bool = False,
    ) -> Unfinished:
        """Copy everything into the buffer, or begin to.

        What only the optimizer writes may be left to a copy that goes on after the return; everything else has been
        copied by then.

        Args:
            number: of the buffer; the same number is the same memory.
            memory: at least `meta.total_bytes`.
            collection: what `plan` was given.
            tree: what `plan` was given.
            meta: what `plan` returned.
            background: whether to leave something to a copy that goes on.
        """
        places = self._places_in(number, memory)
        by_change: dict[Change, list[int]] = {"anywhere": [], "step": [], "never": []}
        for i, changes in enumerate(collection.changes):
            by_change[changes].append(i)
        later = by_change["step"] if background else []
        before = self._trace(collection, later)
        if before is None:
            later = []
        frozen = by_change["never"]
        parts = (_pick(places, frozen), _pick(collection.tensors, frozen), _pick(collection.owners, frozen))
        at_once = by_change["anywhere"] + ([] if later else by_change["step"])
        if not self.frozen.is_there(number, *parts):
            at_once += frozen
        copies = self._begin(_pick(places, later), _pick(collection.tensors, later))
        copy_all(_pick(places, at_once), _pick(collection.tensors, at_once))
        at = meta.tensor_bytes
        memory[at : at + meta.entries_bytes] = self._layout.entries_json
        at += meta.entries_bytes
        memory[at : at + meta.tree_bytes] = tree

        def intact() -> bool:
            after = self._trace(collection, later)
            return before is not None and after is not None and before.same_as(after)

        return Unfinished(copies, intact if later else lambda: True)

    def _places_in(self, number: int, memory: mmap.mmap) -> list[torch.Tensor]:
        places = self._places.get(number)
        if places is None:
            by_name = {entry.name: entry for entry in self._layout.entries}
            whole = torch.frombuffer(memory, dtype=torch.uint8)
            places = self._places[number] = [_place(whole, by_name[name]) for name, *_ in self._signature]
        return places

    def _trace(self, collection: Collection, chosen: list[int]) -> Trace | None:
        if not chosen:
            return None
        return self._trained.take(_pick(collection.tensors, chosen), _pick(collection.owners, chosen))

    def _begin(self, places: list[torch.Tensor], tensors: list[torch.Tensor]) -> list[Copy]:
        host = [i for i, tensor in enumerate(tensors) if tensor.device.type != "cuda"]
        device = [i for i, tensor in enumerate(tensors) if tensor.device.type == "cuda"]
        copies = []
        if device:
            self._device = self._device or StreamCopier(torch.cuda)
            copies.append(self._device.start(_pick(places, device), _pick(tensors, device)))
        if host:
            copies.append(self._host.start(_pick(places, host), _pick(tensors, host)))
        return copies


def _pick(tensors: list[torch.Tensor], chosen: list[int]) -> list[torch.Tensor]:
    return [tensors[i] for i in chosen]


def _place(whole: torch.Tensor, entry: Entry) -> torch.Tensor:
    """Where an entry's tensor lies in a buffer, with the buffer's own storage: that is what gets pinned."""
    dtype = getattr(torch, entry.dtype)
    return whole[entry.offset : entry.offset + entry.nbytes].view(dtype).view(entry.shape)


def _nbytes(dtype: torch.dtype, shape: torch.Size) -> int:
    return shape.numel() * dtype.itemsize


def view(memory: mmap.mmap, entry: Entry) -> torch.Tensor:
    """The tensor of an entry, lying in the buffer."""
    dtype = getattr(torch, entry.dtype)
    if entry.nbytes == 0:
        return torch.empty(entry.shape, dtype=dtype)
    count = entry.nbytes // dtype.itemsize
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=entry.offset).view(entry.shape)


class ShardReader:
    """A shard's tensors by name, and its tree.

    Args:
        memory: the shard.
        meta: its lengths.
        threads: how many may copy large tensors at once. With one, every copy is complete at the return.

    Raises:
        ShardMismatch: the bytes are not a shard.
    """

    def __init__(self, memory: mmap.mmap, meta: ShardMeta, threads: int = 1) -> None:
        self._memory = memory
        self._pool = ThreadPoolExecutor(threads, "lmr-restore") if threads > 1 else None
        self._copies: list[Future[torch.Tensor]] = []
        with memoryview(memory) as look:
            self.entries = read_entries(look, meta)
            self.tree: dict[str, Any] = read_tree(look, meta)
        self._on_device = frozenset(self.tree.get("on_device", []))
        self._parts = frozenset(self.tree.get("parts", []))

    def fits(self, name: str, target: torch.Tensor) -> bool:
        """Whether a live tensor can take the captured one over: same kind, shape, element type and sort of device."""
        entry, part = self.entries[name], local(target)
        return (
            (name in self._parts) == (part is not target)
            and (name in self._on_device) == (part.device.type != "cpu")
            and entry.shape == tuple(part.shape)
            and entry.dtype == str(part.dtype).removeprefix("torch.")
        )

    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """Overwrite a live tensor with the captured one; complete when `wait` returns.

        Raises:
            ShardMismatch: there is none of this name, shape and dtype.
        """
        entry = self.entries.get(name)
        if entry is None:
            raise ShardMismatch("topology_mismatch", f"the shard has no {name}")
        target = local(target)
        if entry.shape != tuple(target.shape) or entry.dtype != str(target.dtype).removeprefix("torch."):
            raise ShardMismatch(
                "topology_mismatch",
                f"{name} is {entry.dtype}{list(entry.shape)} in the shard, {target.dtype}{list(target.shape)} here",
            )
        with torch.no_grad():
            self._copy(target.detach(), view(self._memory, entry))

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if self._pool is None or source.nbytes < _WORTH_A_THREAD_BYTES or target.device.type != "cpu":
            target.copy_(source)
        else:
            self._copies.append(self._pool.submit(target.copy_, source))

    def wait(self) -> None:
        """Until all copies are complete."""
        copies, self._copies = self._copies, []
        for copy in copies:
            copy.result()

    def fresh(self, name: str, like: torch.Tensor | None = None, *, later: bool = False) -> torch.Tensor:
        """A new tensor with the captured content.

        Args:
            name: of the entry.
            like: whose device and memory format it takes when it was on a device or has the same shape.
            later: the content may come until `wait` returns.
        """
        found = self._fresh(name, like)
        if not later:
            self.wait()
        return found

    def _fresh(self, name: str, like: torch.Tensor | None) -> torch.Tensor:
        entry = self.entries[name]
        source = view(self._memory, entry)
        if name in self._parts:
            return self._fresh_part(name, source, like)
        device = like.device if like is not None and name in self._on_device else torch.device("cpu")
        if name in self._on_device and like is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if like is not None and like.shape == source.shape:
            target = torch.empty_like(like, dtype=source.dtype, device=device, requires_grad=False)
        else:
            target = torch.empty(source.shape, dtype=source.dtype, device=device)
        self._copy(target, source)
        return target

    def _fresh_part(self, name: str, source: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
        part = None if like is None else local(like)
        if like is None or part is None or part is like or part.shape != source.shape:
            raise ShardMismatch("topology_mismatch", f"{name} is a part of a DTensor, its parameter is not")
        target = torch.empty_like(like, dtype=source.dtype, requires_grad=False)
        self._copy(local(target), source)
        return target

    def decode(self, tree: Any, like: torch.Tensor | None = None) -> Any:
        """A part of the tree as values."""
        return codec.decode(tree, lambda name: self.fresh(name, like))
