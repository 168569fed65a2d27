"""What a rank computes goes wrong: parameters, gradients, optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch

from lmr.integrations.faults.campaign import InStep

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer type by the size of an element in bytes."""


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def flip_parameter(optimizer: Any, fault: InStep, random: Random) -> None:
    """One bit of one parameter."""
    _flip(random.choice(_parameters(optimizer)), getattr(fault, "bit", None), random)


def flip_gradient(optimizer: Any, fault: InStep, random: Random) -> None:
    """One bit of one gradient, as it has come out of the reduction."""
    gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
    _flip(random.choice(gradients), getattr(fault, "bit", None), random)


def _flip(tensor: torch.Tensor, bit: int | None, random: Random) -> None:
    local = getattr(tensor, "_local_tensor", tensor).detach()
    bits = 8 * local.element_size()
    # Without a wish: of the mantissa's upper half or the exponent's lower, so that it matters and stays a number.
    at = bits * 3 // 8 + random.randrange(bits // 4) if bit is None else bit % bits
    where = random.randrange(local.numel())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(where), local.shape))
    element = local[index].reshape(1)
    word = element.view(_WORDS[local.element_size()])
    flag = 1 << at if at < bits - 1 else -(1 << at)
    local[index] = (word ^ flag).view(local.dtype)[0]


def put_back_later(optimizer: Any) -> Callable[[], None]:
    """Remember parameters and optimizer state; the result puts them back."""
    parameters = [(p, p.detach().clone()) for p in _parameters(optimizer)]
    states = [
        (value, value.clone())
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]

    def put_back() -> None:
        with torch.no_grad():
            for live, before in (*parameters, *states):
                live.copy_(before)

    return put_back


def lose_gradients(optimizer: Any) -> None:
    """The update finds nothing to apply."""
    for parameter in _parameters(optimizer):
        parameter.grad = None


def step_again(optimizer: Any) -> None:
    """Apply the same gradients once more; without the hooks, for whoever counts steps sees one."""
    unhooked: Any = type(optimizer).step
    while hasattr(unhooked, "__wrapped__"):
        unhooked = unhooked.__wrapped__
    with torch.no_grad():
        unhooked(optimizer)
