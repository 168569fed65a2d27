"""One module's forward and backward pass, with parameters and inputs made from a seed."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import torch
from torch import nn
from torch.nn.utils import stateless
from torch.utils import _pytree as pytree

from lmr.integrations.scout.rerun.isolation import Attributes, NoCommunication, deterministic, own_randomness
from lmr.integrations.scout.rerun.specs import CallSpec, NotRepeatable, TensorSpec, fingerprint


class ModuleCall:
    """A call of a module that was seen, to be computed again.

    The module's own `forward` is called, so hooks of wrappers around it (sharding, compilation) have no part in it.

    Args:
        name: where the module stands in its model.
        module: the module.
        call: the arguments it was seen with.
        device: where it computes.

    Raises:
        NotRepeatable: something in or around the module cannot be isolated.
    """

    def __init__(self, name: str, module: nn.Module, call: CallSpec, device: torch.device) -> None:
        self.name = name
        self._module = module
        self._call = call
        self.device = device
        self._rehearsed = False
        for child in module.modules():
            if child is not module and _has_hooks(child):
                raise NotRepeatable(f"{type(child).__name__} has hooks")
            if isinstance(child, nn.SyncBatchNorm):
                raise NotRepeatable("SyncBatchNorm speaks to other ranks")
        self._parameters = {key: _whole(p) for key, p in module.named_parameters()}
        self._buffers = {key: TensorSpec.of(b) for key, b in module.named_buffers()}
        self._below = module.num_embeddings if isinstance(module, nn.Embedding) else 1

    @property
    def nbytes(self) -> int:
        """Size of the parameters and inputs."""
        return self._call.nbytes + sum(spec.nbytes for spec in self._parameters.values())

    def text(self) -> str:
        """The same for the same call on every rank; with the contents of buffers that are used as they are."""
        own = {key: spec.text() for key, spec in (self._parameters | self._buffers).items()}
        kept = [b for b in self._module.buffers() if not b.is_floating_point()]
        return (
            f"{self.name}{type(self._module).__qualname__}{self._module.training}{self._call.text()}{own}"
            f"{fingerprint(kept)}"
        )

    def run(self, seed: int) -> str:
        """Compute it; the digest of outputs and gradients.

            Raises:
        NotRepeatable: it speaks to other ranks, has no deterministic kernel, or leaves something behind. Nothing of
                    it stays.
        """
        attributes = Attributes(self._module)
        try:
            silence: Any = contextlib.nullcontext if self._rehearsed else NoCommunication
            with deterministic(), silence():
                found = self._compute(seed)
        finally:
            changed = attributes.put_back()
        if changed:
            raise NotRepeatable(f"it changes {', '.join(sorted(set(changed))[:3])}")
        self._rehearsed = True
        return fingerprint(found)

    def _compute(self, seed: int) -> list[torch.Tensor]:
        parameters = {key: _weight(spec, seed + 1000 + i) for i, (key, spec) in enumerate(self._parameters.items())}
        live = dict(self._module.named_buffers())
        buffers = {
            key: spec.make(seed + 5000 + i).add_(2.0) if spec.dtype.is_floating_point else live[key].clone()
            for i, (key, spec) in enumerate(self._buffers.items())
        }
        args, kwargs, wanted = self._call.make(seed, self._below)
        wanted += [p for p in parameters.values() if p.requires_grad]
        kind, cast = self.device.type, self._call.autocast
        with (
            torch.enable_grad(),
            own_randomness(seed, self.device),
            stateless._reparametrize_module(self._module, {**parameters, **buffers}, tie_weights=True),
        ):
            with torch.autocast(kind, dtype=cast, enabled=cast is not None, cache_enabled=False):
                out: Any = type(self._module).forward(self._module, *args, **kwargs)
            outputs = [o for o in pytree.tree_leaves(out) if isinstance(o, torch.Tensor)]
            sources = [o for o in outputs if o.requires_grad and o.is_floating_point()]
            if not wanted or not sources:
                return outputs
            cotangents = [TensorSpec(tuple(o.shape), o.dtype, o.device, requires_grad=False) for o in sources]
            grads = torch.autograd.grad(
                sources, wanted, [spec.make(seed + 9000 + i) for i, spec in enumerate(cotangents)], allow_unused=True
            )
        return outputs + [g for g in grads if g is not None]


def _weight(spec: TensorSpec, seed: int) -> torch.Tensor:
    """A parameter of a usual size: around 1 where it scales, small where it multiplies matrices."""
    frozen = TensorSpec(spec.shape, spec.dtype, spec.device, requires_grad=False)
    made = frozen.make(seed)
    made = made.mul_(0.1).add_(1.0) if len(spec.shape) < 2 else made.mul_(spec.shape[-1] ** -0.5)
    return made.requires_grad_(spec.requires_grad)


def _whole(parameter: torch.Tensor) -> TensorSpec:
    """The spec of a parameter as its module computes with it: of a sharded one, all of it.

    Raises:
        NotRepeatable: it is split by something else than fully sharded data parallelism.
    """
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(parameter, module.DTensor):
        return TensorSpec.of(parameter)
    return TensorSpec(tuple(parameter.shape), parameter.dtype, parameter._local_tensor.device, parameter.requires_grad)


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )
