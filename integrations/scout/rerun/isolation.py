"""Around a call that is computed again: random states come back, no rank is spoken to, what changed is noticed.

Kernels whose result depends on the order of threads would accuse a machine that is sound. Torch knows which those are:
where it has another kernel, that one is computed, and where it has none, the call is refused.
"""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lmr.integrations.scout.rerun.specs import NotRepeatable

_COMMUNICATING = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "fsdp")


class NoCommunication(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops a call at its first collective: an operation that only one rank enters hangs the others."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation passes here."""
        if func.namespace in _COMMUNICATING:
            raise NotRepeatable(f"it calls {func.namespace}.{func.__name__}")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Only kernels that give the same bits each time.

    Raises:
        NotRepeatable: there is none for an operation inside.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    # Warnings, because the error would also be raised for matrix products of CUDA without a variable of cuBLAS'.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    odd = next((str(w.message) for w in said if "does not have a deterministic implementation" in str(w.message)), None)
    if odd is not None:
        raise NotRepeatable(odd.split(",")[0])


@contextlib.contextmanager
def own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers from a seed inside, and outside as if nothing had been drawn."""
    devices = [] if device.type == "cpu" else [device]
    kept = random.getstate()
    numpy = sys.modules.get("numpy")
    kept_numpy = None if numpy is None else numpy.random.get_state()
    with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(kept)
            if numpy is not None:
                numpy.random.set_state(kept_numpy)


class Attributes:
    """The plain attributes of a module and all below it: a call must leave them as they were.

    Args:
        module: the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._before = [(one, dict(one.__dict__)) for one in module.modules()]
        self._inner: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (cast("dict[str, Any]", held), dict(held))
            for one in module.modules()
            for held in (one._parameters, one._buffers, one._modules)
            if held
        ]

    def put_back(self) -> list[str]:
        """Undo what the call changed; the names of it."""
        changed = []
        for one, before in self._before:
            now = one.__dict__
            odd = [key for key in before.keys() | now.keys() if before.get(key, self) is not now.get(key, self)]
            changed += [f"{type(one).__name__}.{key}" for key in odd]
            for key in odd:
                if key in before:
                    now[key] = before[key]
                else:
                    del now[key]
        for held, inner in self._inner:
            if any(held.get(key) is not value for key, value in inner.items()) or len(held) != len(inner):
                changed.append("a parameter, buffer or module")
                held.clear()
                held.update(inner)
        return changed
