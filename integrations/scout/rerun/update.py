"""One optimizer's arithmetic on a slice: two steps of a twin that owns nothing of the script."""

from __future__ import annotations

import collections
from typing import Any

import torch

from lmr.integrations.scout.rerun.isolation import own_randomness
from lmr.integrations.scout.rerun.specs import NotRepeatable, TensorSpec, fingerprint

SLICE_ELEMENTS = 65_536
STEPS = 2
"""The second begins with the state the first has left."""
_NOT_ELEMENTWISE = ("LBFGS", "SparseAdam")


class Update:
    """A step of an optimizer of torch, to be computed on made-up parameters and gradients.

    Args:
        optimizer: whose class and defaults are taken.
        like: one of its parameters: device and element type.

    Raises:
        NotRepeatable: not one of torch's own elementwise optimizers.
    """

    name = "optimizer"

    def __init__(self, optimizer: torch.optim.Optimizer, like: torch.Tensor) -> None:
        kind = type(optimizer)
        if kind.__module__.rpartition(".")[0] not in ("torch", "torch.optim") or kind.__name__ in _NOT_ELEMENTWISE:
            raise NotRepeatable(f"{kind.__name__} is not one of torch's own elementwise optimizers")
        self._kind = kind
        self._defaults = {
            key: value.item() if isinstance(value, torch.Tensor) else value
            for key, value in optimizer.defaults.items()
            if key != "params"
        }
        # The step itself, without the hooks the outside hears of steps by.
        step: Any = kind.step
        self._step = step.__wrapped__ if getattr(step, "hooked", False) else step
        self.device = like.device
        self._spec = TensorSpec((SLICE_ELEMENTS,), like.dtype, like.device, requires_grad=False)

    @property
    def nbytes(self) -> int:
        """Size of the slice with its gradient."""
        return 2 * self._spec.nbytes

    def text(self) -> str:
        """The same for the same arithmetic on every rank."""
        return f"{self._kind.__qualname__}{sorted(self._defaults.items(), key=str)}{self._spec.text()}"

    def run(self, seed: int) -> str:
        """Compute it; the digest of the slice and its state afterwards."""
        parameter = self._spec.make(seed).requires_grad_()
        twin = object.__new__(self._kind)
        twin.__dict__.update(
            defaults=dict(self._defaults),
            state=collections.defaultdict(dict),
            param_groups=[{**self._defaults, "params": [parameter]}],
        )
        twin.__setstate__({})
        with own_randomness(seed, self.device), torch.enable_grad():
            for number in range(STEPS):
                parameter.grad = self._spec.make(seed + 1 + number)
                self._step(twin)
        state = [v for _, v in sorted(twin.state[parameter].items()) if isinstance(v, torch.Tensor)]
        return fingerprint([parameter, *state])
