"""A stretch of a tensor's bytes and its digest, wherever the tensor lies.

In the processor's memory the digest is XXH3 over the bytes as they are, read without a copy. On an accelerator it is
two sums over the bytes as integers, computed there; they are compared there too.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import torch
import xxhash

Content = int | torch.Tensor
"""A digest; a tensor [2] of int64 where the bytes are on an accelerator."""


class Piece:
    """Bytes `begin` to `end` of a tensor, which is held weakly.

    Args:
        name: of the tensor.
        tensor: a plain, strided tensor.
        begin: first byte.
        end: one after the last.
    """

    __slots__ = ("_address", "_memory", "begin", "end", "excluded", "name", "proofs", "tensor")

    def __init__(self, name: tuple[Any, ...], tensor: torch.Tensor, begin: int, end: int) -> None:
        self.name = name
        self.tensor = weakref.ref(tensor)
        self.begin = begin
        self.end = end
        self.proofs = 0
        self.excluded = False
        self._address = 0
        self._memory: memoryview | None = None

    @property
    def nbytes(self) -> int:
        """Length of the stretch."""
        return self.end - self.begin

    def place(self) -> tuple[int, int] | None:
        """Where the tensor lies and how often it was written to; None when it is gone or its bytes are not in one row.

        Equal answers at two moments mean that nobody wrote to it in between, as far as torch knows.
        """
        tensor = self.tensor()
        if tensor is None or not tensor.is_contiguous() or tensor.nbytes < self.end:
            return None
        if tensor.untyped_storage().nbytes() < tensor.nbytes:  # given back for now, as sharded training does
            return None
        return tensor.data_ptr(), tensor._version

    def read(self) -> Content:
        """The digest now; ask `place` right before."""
        tensor = self.tensor()
        assert tensor is not None
        if not tensor.is_cpu:
            return sums(tensor, self.begin, self.end)
        address = tensor.data_ptr()
        if self._memory is None or address != self._address:
            self._address = address
            whole = (ctypes.c_ubyte * self.nbytes).from_address(address + self.begin)
            self._memory = memoryview(whole).cast("B")
        return xxhash.xxh3_64_intdigest(self._memory)


def sums(tensor: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """Two sums over a stretch of a contiguous tensor's bytes, the second weighted by place. A flipped bit changes both.

    Returns:
        [2], int64, on the tensor's device.
    """
    flat = tensor.detach().reshape(-1).view(torch.uint8)[begin:end]
    aligned = len(flat) % 4 == 0 and begin % 4 == 0
    words = (flat.view(torch.int32) if aligned else flat).to(torch.int64)
    places = torch.arange(1, len(words) + 1, device=words.device)
    return torch.stack((words.sum(), (words * places).sum()))
