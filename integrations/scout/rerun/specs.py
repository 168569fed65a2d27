"""What a call was made of, and the same again from a seed.

The inputs of data-parallel peers differ, and exchanging them would take a collective of our own inside somebody else's
training, which can hang it. So values are made from the shapes that were seen and a seed: on every rank the same,
in every generation the same, and neither activations nor parameters have to be kept or copied.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn
from torch.utils import _pytree as pytree

PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)
_MULTIPLIER, _RANGE = 2_654_435_761, 1 << 16


class NotRepeatable(Exception):
    """This call cannot be computed again; the message says why."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The spec of a plain tensor.

        Raises:
            NotRepeatable: it is of a kind of its own.
        """
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
            raise NotRepeatable(f"a {type(tensor).__name__} ({tensor.layout})")
        return cls(tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad)

    @property
    def nbytes(self) -> int:
        """Size of its values."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def text(self) -> str:
        """The same for equal specs on every rank."""
        return f"{self.dtype}{list(self.shape)}{self.device.type}{int(self.requires_grad)}"

    def make(self, seed: int, below: int = 1) -> torch.Tensor:
        """Values from a seed: in (-1, 1), integers below `below`, true."""
        count = torch.Size(self.shape).numel()
        if self.dtype is torch.bool:
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        numbers = torch.arange(1, count + 1, device=self.device, dtype=torch.int64)
        numbers = (numbers.add_(seed * 7919).mul_(_MULTIPLIER).bitwise_right_shift_(13)).bitwise_and_(_RANGE - 1)
        if not self.dtype.is_floating_point:
            return numbers.remainder_(below).to(self.dtype).view(self.shape)
        made = numbers.to(torch.float32).div_(_RANGE / 2).sub_(1.0).to(self.dtype).view(self.shape)
        return made.requires_grad_(self.requires_grad)


@dataclass(frozen=True)
class CallSpec:
    """The arguments of one call: tensors by their spec, everything else as it was."""

    leaves: tuple[Any, ...]
    tree: Any
    autocast: torch.dtype | None

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device) -> CallSpec:
        """The spec of a call.

        Raises:
            NotRepeatable: an argument that can be anything.
        """
        flat, tree = pytree.tree_flatten((args, kwargs))
        leaves: list[Any] = []
        for leaf in flat:
            if isinstance(leaf, torch.Tensor):
                leaves.append(TensorSpec.of(leaf))
            elif leaf is None or isinstance(leaf, (bool, int, float, str, torch.dtype)):
                leaves.append(leaf)
            else:
                raise NotRepeatable(f"an argument of type {type(leaf).__name__}")
        cast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        return cls(tuple(leaves), tree, cast)

    @property
    def nbytes(self) -> int:
        """Size of all its tensors."""
        return sum(leaf.nbytes for leaf in self.leaves if isinstance(leaf, TensorSpec))

    def text(self) -> str:
        """The same for equal calls on every rank."""
        told = [leaf.text() if isinstance(leaf, TensorSpec) else repr(leaf) for leaf in self.leaves]
        return f"{told}{self.tree}{self.autocast}"

    def make(self, seed: int, below: int) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
        """Arguments from a seed, and those of them that want a gradient."""
        made = [
            leaf.make(seed + number, below) if isinstance(leaf, TensorSpec) else leaf
            for number, leaf in enumerate(self.leaves)
        ]
        args, kwargs = pytree.tree_unflatten(made, self.tree)
        return args, kwargs, [one for one in made if isinstance(one, torch.Tensor) and one.requires_grad]


def fingerprint(tensors: list[torch.Tensor]) -> str:
    """Hex digest of the tensors' bytes, in order. Waits for the device they are on."""
    state = xxhash.xxh3_128()
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
        state.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        state.update(flat.numpy().data)
    return state.hexdigest()


def surroundings(device: torch.device) -> str:
    """Everything beside the call that may change its bits: ranks are compared only where it is equal."""
    backends = torch.backends
    parts: list[Any] = [
        torch.__version__,
        platform.machine(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        backends.mkldnn.enabled,
        backends.cpu.get_cpu_capability(),
        _processor(),
    ]
    if device.type != "cpu":
        module = getattr(torch, device.type, None)
        name = getattr(module, "get_device_name", None)
        parts += [device.type, name(device) if name is not None else "", torch.version.cuda, torch.version.hip]
        parts.append(backends.cudnn.version())  # type: ignore[no-untyped-call]
        parts += [backends.cudnn.benchmark, backends.cudnn.deterministic, backends.cuda.matmul.allow_tf32]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


@functools.cache
def _processor() -> str:
    """The processor's model: kernels are chosen by it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return ""
