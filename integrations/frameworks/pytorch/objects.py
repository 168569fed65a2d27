"""The objects training is made of, by the order in which the script created them.

A restarted script creates the same objects in the same order, so the number of an object is its name. They are held
weakly: what the script drops is no longer part of its state.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from lmr.integrations.frameworks.adapter import Framework
from lmr.integrations.frameworks.pytorch.bystanders import outermost

T = TypeVar("T")


class Created(Generic[T]):
    """Objects of one kind in creation order."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[T]] = []
        self._numbers: dict[int, int] = {}
        self._successor_of: int | None = None

    def note(self, one: T) -> int:
        """Remember an object, once; returns its number."""
        number = self._numbers.get(id(one))
        if number is not None and self._refs[number]() is one:
            return number
        if self._successor_of is not None:
            number, self._successor_of = self._successor_of, None
            self._numbers[id(one)], self._refs[number] = number, weakref.ref(one)
            return number
        self._numbers[id(one)] = len(self._refs)
        self._refs.append(weakref.ref(one))
        return len(self._refs) - 1

    def succeed(self, number: int | None) -> None:
        """The next object noted takes the place of an earlier one: some frameworks make a loader anew each epoch."""
        self._successor_of = number

    def number(self, one: T) -> int | None:
        """The number of an object, None if it was never noted."""
        number = self._numbers.get(id(one))
        return number if number is not None and self._refs[number]() is one else None

    def alive(self) -> list[tuple[int, T]]:
        """Numbers and objects that still exist."""
        found = []
        for number, ref in enumerate(self._refs):
            one = ref()
            if one is not None:
                found.append((number, one))
        return found


class Objects:
    """Everything of this script that holds training state."""

    def __init__(self) -> None:
        self.optimizers: Created[torch.optim.Optimizer] = Created()
        self.schedulers: Created[Any] = Created()
        self.scalers: Created[Any] = Created()
        self.loaders: Created[Any] = Created()
        self.tracked: dict[str, Any] = {}
        """What the script itself named, by name: anything with `state_dict` and `load_state_dict`."""
        self._roots: list[weakref.ref[nn.Module]] | None = None
        self._params: frozenset[int] = frozenset()
        self.framework: Framework | None = None

    def forget_roots(self) -> None:
        """Look for models anew at the next need."""
        self._roots = None

    def optimized_ids(self) -> frozenset[int]:
        """The identities of all parameters any optimizer updates, or that the framework says are trained."""
        if self.framework is not None:
            return frozenset(id(p) for root in self.framework.models() for p in root.parameters())
        return frozenset(
            id(p)
            for _, optimizer in self.optimizers.alive()
            for group in optimizer.param_groups
            for p in group["params"]
        )

    def optimized_state(self) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
        """Everything optimizers own, by name: parameters, and the tensors of their state."""
        for number, optimizer in self.optimizers.alive():
            for g, parameters in enumerate(self.parameters_of(optimizer)):
                for i, parameter in enumerate(parameters):
                    yield (number, g, i), parameter
                    for key, value in optimizer.state.get(parameter, {}).items():
                        if isinstance(value, torch.Tensor):
                            yield (number, g, i, key), value

    def roots(self) -> list[nn.Module]:
        """Models whose parameters are optimized, outermost wrapper first seen, then running averages of them.

        Ordered by the optimizers' parameters, which is the script's own order; found once and remembered while the
        optimized parameters stay the same.
        """
        if self.framework is not None:
            return self.framework.models()
        params = self.optimized_ids()
        if self._roots is not None and params == self._params:
            alive = [root for ref in self._roots if (root := ref()) is not None]
            if len(alive) == len(self._roots):
                return alive
        self._params = params
        found = self._find_roots()
        self._roots = [weakref.ref(root) for root in found]
        return found

    def _find_roots(self) -> list[nn.Module]:
        order = {
            id(p): place
            for place, p in enumerate(
                p
                for _, optimizer in self.optimizers.alive()
                for group in optimizer.param_groups
                for p in group["params"]
            )
        }
        ranked, averages = [], []
        for module in outermost():
            places = [order[id(p)] for p in module.parameters() if id(p) in order]
            if places:
                ranked.append((min(places), _depth(module), module))
            elif isinstance(module, AveragedModel):
                averages.append(module)
        ranked.sort(key=lambda row: (row[0], -row[1]))
        return [module for _, _, module in ranked] + averages

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> list[list[torch.Tensor]]:
        """The tensors that key an optimizer's state, by parameter group."""
        if self.framework is not None:
            return self.framework.parameters_of(optimizer)
        return [list(group["params"]) for group in optimizer.param_groups]


def replicated(root: nn.Module) -> DistributedDataParallel | None:
    """The DDP wrapper of a model, None when its parameters are not replicated by DDP."""
    for module in root.modules():
        if isinstance(module, DistributedDataParallel):
            return module
    return None


def _depth(module: nn.Module) -> int:
    return sum(1 for _ in module.modules())
