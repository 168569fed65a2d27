"""Writes a rank's training state into granted memory, and reads it back. The torch side of a shard."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import torch

from lmr.integrations.gemini import codec, finite
from lmr.integrations.gemini.errors import ShardMismatch, StateUnknown
from lmr.integrations.gemini.shard import Entry, Layout, Section, ShardMeta, Wanted, read_entries, read_tree

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
        self.trained: list[bool] = []
        """Which of them are trained: parameters an optimizer updates, and its state."""
        self.on_device: list[str] = []
        self.parts: list[str] = []
        """Names of those that are a DTensor's local part."""

    def add(self, name: str, tensor: torch.Tensor, section: Section, *, trained: bool = False) -> str:
        """Take a tensor in; of a DTensor, the part that is here.

        Args:
            name: unique.
            tensor: any.
            section: whether data-parallel peers hold it alike.
            trained: whether it is a parameter an optimizer updates, or its state.

        Raises:
            StateUnknown: not a dense, plain tensor.
        """
        part = local(tensor)
        if part is not tensor:
            self.parts.append(name)
            tensor = part
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_quantized:
            raise StateUnknown(name, f"{type(tensor).__name__} ({tensor.layout})")
        self.tensors.append(tensor)
        self.names.append(name)
        self.sections.append(section)
        self.trained.append(trained)
        if tensor.device.type != "cpu":
            self.on_device.append(name)
        return name


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

    def plan(self, collection: Collection, tree: bytes) -> ShardMeta:
        """Lay the tensors out; returns the lengths the shard will have."""
        signature = [
            (name, tensor.dtype, tensor.shape, section, trained)
            for name, tensor, section, trained in zip(
                collection.names, collection.tensors, collection.sections, collection.trained, strict=True
            )
        ]
        if signature != self._signature:
            wanted = [self._wanted(*one) for one in signature]
            self._layout, self._signature = Layout(wanted), signature
            self._places.clear()
        return self._layout.meta(self._rank, len(tree))

    def _wanted(self, name: str, dtype: torch.dtype, shape: torch.Size, section: Section, trained: bool) -> Wanted:
        kind = str(dtype).removeprefix("torch.")
        must_be_finite = trained and self._require_finite and finite.can_be_checked(kind)
        return Wanted(name, kind, tuple(shape), _nbytes(dtype, shape), section, must_be_finite)

    def write(self, number: int, memory: mmap.mmap, collection: Collection, tree: bytes, meta: ShardMeta) -> None:
        """Copy everything into the buffer.

        Args:
            number: of the buffer; the same number is the same memory.
            memory: at least `meta.total_bytes`.
            collection: what `plan` was given.
            tree: what `plan` was given.
            meta: what `plan` returned.
        """
        places = self._places.get(number)
        if places is None:
            by_name = {entry.name: entry for entry in self._layout.entries}
            places = self._places[number] = [view(memory, by_name[name]) for name in collection.names]
        with torch.no_grad():
            torch._foreach_copy_(places, [tensor.detach() for tensor in collection.tensors])
        at = meta.tensor_bytes
        memory[at : at + meta.entries_bytes] = self._layout.entries_json
        at += meta.entries_bytes
        memory[at : at + meta.tree_bytes] = tree


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

    Raises:
        ShardMismatch: the bytes are not a shard.
    """

    def __init__(self, memory: mmap.mmap, meta: ShardMeta) -> None:
        self._memory = memory
        with memoryview(memory) as look:
            self.entries = read_entries(look, meta)
            self.tree: dict[str, Any] = read_tree(look, meta)
        self._on_device = frozenset(self.tree.get("on_device", []))
        self._parts = frozenset(self.tree.get("parts", []))

    def copy_into(self, name: str, target: torch.Tensor) -> None:
        """Overwrite a live tensor with the captured one.

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
            target.detach().copy_(view(self._memory, entry))

    def fresh(self, name: str, like: torch.Tensor | None = None) -> torch.Tensor:
        """A new tensor with the captured content.

        Args:
            name: of the entry.
            like: whose device and memory format it takes when it was on a device or has the same shape.
        """
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
        return target.copy_(source)

    @staticmethod
    def _fresh_part(name: str, source: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
        part = None if like is None else local(like)
        if like is None or part is None or part is like or part.shape != source.shape:
            raise ShardMismatch("topology_mismatch", f"{name} is a part of a DTensor, its parameter is not")
        target = torch.empty_like(like, dtype=source.dtype, requires_grad=False)
        local(target).copy_(source)
        return target

    def decode(self, tree: Any, like: torch.Tensor | None = None) -> Any:
        """A part of the tree as values."""
        return codec.decode(tree, lambda name: self.fresh(name, like))
