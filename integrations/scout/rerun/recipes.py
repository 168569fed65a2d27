"""Which calls are computed again: embedding, output, an optimizer's step, and one hidden layer after another.

All ranks choose by the model's structure and the step's number alone, so that they compute the same one at the same
step without a word between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from lmr.integrations.gemini.capture import local
from lmr.integrations.scout.rerun.module_call import ModuleCall
from lmr.integrations.scout.rerun.specs import CallSpec, NotRepeatable
from lmr.integrations.scout.rerun.update import Update

HIDDEN_MOST = 256
WAIT_BOUNDARIES = 3
"""How long calls are waited for: a module that is not called in as many steps is not computed again."""

Recipe = ModuleCall | Update


class Recipes:
    """The calls of one rank's models, each known once it was seen.

    Args:
        models: outermost modules whose parameters are optimized.
        optimizers: that update them.
        most_bytes: calls with more parameters and inputs are left out.
        refused: called with what cannot be computed again, and why.
    """

    def __init__(
        self,
        models: list[nn.Module],
        optimizers: list[torch.optim.Optimizer],
        most_bytes: int,
        refused: Callable[[str, str], None],
    ) -> None:
        self._most_bytes = most_bytes
        self._refused = refused
        self._known: dict[str, Recipe] = {}
        self._awaited: dict[int, str] = {}
        self._boundaries = 0
        self._fixed: list[str] = []
        self._hidden: list[str] = []
        for name, module in _ends(models):
            self._fixed.append(name)
            self._awaited[id(module)] = name
        for name, module in _layers(models, most_bytes)[:HIDDEN_MOST]:
            if name not in self._fixed:
                self._hidden.append(name)
                self._awaited[id(module)] = name
        for number, optimizer in enumerate(optimizers[:1]):
            self._fixed.append(f"optimizer.{number}")
            self._add_update(f"optimizer.{number}", optimizer)
        # One hook for all, and none on a module: the script may save or copy its modules as they are.
        self._handle: Any = nn.modules.module.register_module_forward_hook(self._called, with_kwargs=True)

    def at_boundary(self) -> None:
        """A step is complete: calls that have not come by now are not waited for much longer."""
        self._boundaries += 1
        if self._handle is not None and (not self._awaited or self._boundaries > WAIT_BOUNDARIES):
            self._handle.remove()
            self._handle = None

    def turn(self, number: int) -> tuple[str, Recipe, int] | None:
        """Whose turn it is, and for the how manieth time its kind's; None when this rank cannot compute it, or not yet.

        Args:
            number: of the check.
        """
        kinds = len(self._fixed) + (1 if self._hidden else 0)
        if kinds == 0:
            return None
        at, round_number = number % kinds, number // kinds
        name = self._fixed[at] if at < len(self._fixed) else self._hidden[round_number % len(self._hidden)]
        recipe = self._known.get(name)
        return None if recipe is None else (name, recipe, round_number)

    def drop(self, name: str, why: str) -> None:
        """Never compute this one again."""
        self._known.pop(name, None)
        self._refused(f"replay of {name}", why)

    def _add_update(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        parameter = next((p for group in optimizer.param_groups for p in group["params"]), None)
        try:
            if parameter is not None:
                self._known[name] = Update(optimizer, local(parameter))
        except NotRepeatable as error:
            self._refused(f"replay of {name}", str(error))

    def _called(self, module: nn.Module, args: Any, kwargs: Any, _out: Any) -> None:
        if torch.compiler.is_compiling():
            return
        name = self._awaited.get(id(module))
        if name is None or not module.training or not torch.is_grad_enabled():
            return
        del self._awaited[id(module)]
        try:
            self._seen(name, module, args, kwargs)
        except Exception as error:  # noqa: BLE001  one check less; the call itself goes on
            self._refused(f"replay of {name}", str(error))

    def _seen(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        device = local(next(module.parameters())).device
        call = ModuleCall(name, module, CallSpec.of(args, kwargs, device), device)
        if call.nbytes > self._most_bytes:
            raise NotRepeatable(f"{call.nbytes} bytes of parameters and inputs, more than most_bytes")
        self._known[name] = call


def _named(models: list[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    for number, model in enumerate(models):
        for name, module in model.named_modules():
            yield f"{number}.{name}" if name else str(number), module


def _own_bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def _ends(models: list[nn.Module]) -> list[tuple[str, nn.Module]]:
    """The first embedding and the last module with parameters of its own."""
    with_own = [(n, m) for n, m in _named(models) if any(True for _ in m.parameters(recurse=False))]
    embedding = next(((n, m) for n, m in with_own if isinstance(m, nn.Embedding)), None)
    last = with_own[-1] if with_own else None
    return [one for one in dict.fromkeys((embedding, last)) if one is not None]


def _layers(models: list[nn.Module], most_bytes: int) -> list[tuple[str, nn.Module]]:
    """The layers of the deepest-weighing stack; where there is none that fits, every module with own parameters."""
    best: list[tuple[str, nn.Module]] = []
    weight = 0
    for name, module in _named(models):
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        layers = [(f"{name}.{key}", child) for key, child in module.named_children() if _own_bytes(child)]
        alike = len(layers) > 1 and len({type(child) for _, child in layers}) == 1
        whole = sum(_own_bytes(child) for _, child in layers)
        if alike and whole > weight and max(_own_bytes(child) for _, child in layers) <= most_bytes:
            best, weight = layers, whole
    if best:
        return best
    return [
        (n, m)
        for n, m in _named(models)
        if 0 < sum(p.numel() * p.element_size() for p in m.parameters(recurse=False)) <= most_bytes
        and not any(True for _ in m.children())
    ]
