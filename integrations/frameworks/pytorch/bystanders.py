"""Modules that no optimizer updates, but that change: running averages of one's own, target networks, statistics.

They are looked for among all modules of the process where the first step begins, and again from time to time. One
whose tensors are seen to change is state from then on. One that stays as the script made it, as a frozen teacher does,
is not: a restarted script makes it again. They have no order that a restarted script repeats, so each is known by its
kind and the names and shapes of its tensors, and must be the only one of its like.
"""

from __future__ import annotations

import gc
import hashlib
import weakref
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from lmr.integrations.gemini.capture import local
from lmr.integrations.gemini.traces import Trace, Tracer

LOOKED_AT = 16
"""Tensors of a module whose elements are looked at: averaging and copying write to all of them."""


def outermost() -> list[nn.Module]:
    """Every module of this process that is in no other."""
    modules: list[nn.Module] = [one for one in gc.get_objects() if _is_module(one)]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    return [module for module in modules if id(module) not in inner]


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, each once."""
    return dict([*module.named_parameters(), *module.named_buffers()])


class Bystanders:
    """Watches the modules nobody optimizes.

    Args:
        trained: identities of everything that models being trained consist of.
        degraded: called with what is not protected, and why.
    """

    def __init__(self, trained: Callable[[], Iterable[int]], degraded: Callable[[str, str], None]) -> None:
        self._trained = trained
        self._degraded = degraded
        self._watched: dict[str, list[_Watched]] = {}
        self._state: set[str] = set()
        self._boundaries = 0
        self._next_look = 1

    def look(self) -> None:
        """Look for modules that are new, and remember how they are now."""
        trained = frozenset(self._trained())
        for module in outermost():
            tensors = tensors_of(module)
            if any(is_lazy(one) for one in tensors.values()):
                continue
            if tensors and not isinstance(module, AveragedModel) and trained.isdisjoint(map(id, tensors.values())):
                alike = self._watched.setdefault(_name(module, tensors), [])
                alike[:] = [one for one in alike if one.module() is not None]
                if all(one.module() is not module for one in alike):
                    alike.append(_Watched(module))

    def expected(self, names: Iterable[str]) -> dict[str, nn.Module]:
        """Those that were state when the run was captured and are there again, by name; they are state from now on."""
        self._state |= set(names)
        if not self._state <= self._unique().keys():
            self.look()
        found = self._unique()
        return {name: found[name] for name in sorted(self._state & found.keys())}

    def changed(self) -> dict[str, nn.Module]:
        """Those that are state, by name. To be asked at each boundary."""
        self._boundaries += 1
        if self._boundaries >= self._next_look:
            self._next_look = 2 * self._boundaries
            self.look()
        for name, alike in self._watched.items():
            if name not in self._state and any(one.has_changed() for one in alike):
                self._state.add(name)
        found = self._unique()
        for name in self._state & self._watched.keys() - found.keys():
            if any(one.module() is not None for one in self._watched[name]):
                self._degraded(f"{name.partition('-')[0]}, which no optimizer updates", "several modules are alike")
        return {name: found[name] for name in sorted(self._state & found.keys())}

    def _unique(self) -> dict[str, nn.Module]:
        found = {}
        for name, alike in self._watched.items():
            alive = [module for one in alike if (module := one.module()) is not None]
            if len(alive) == 1:
                found[name] = alive[0]
        return found


class _Watched:
    """One module, and how it was when it was seen first.

    Looked at in every step, so it must cost little: of each tensor what torch counts, of a few their elements.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: weakref.ref[nn.Module] = weakref.ref(module)
        tensors = list(tensors_of(module).values())
        self._tensors = [weakref.ref(one) for one in tensors]
        self._versions = _versions(tensors)
        apart = -(-len(tensors) // LOOKED_AT)
        self._few = self._tensors[::apart]
        self._tracer = Tracer()
        self._before = self._trace(tensors[::apart])

    def _trace(self, few: list[torch.Tensor]) -> Trace | None:
        return self._tracer.take([local(one) for one in few], few)

    def has_changed(self) -> bool:
        """Whether somebody has written to it, or put other tensors there; not where that cannot be told."""
        if self.module() is None:
            return False
        tensors = [one for ref in self._tensors if (one := ref()) is not None]
        if len(tensors) < len(self._tensors) or _versions(tensors) != self._versions:
            return True
        now = self._trace([one for ref in self._few if (one := ref()) is not None])
        return now is not None and self._before is not None and not self._before.same_as(now)


def _versions(tensors: list[torch.Tensor]) -> list[int] | None:
    """How often each was written to; None where torch does not count, as for what is made in inference mode."""
    try:
        return [one._version for one in tensors]
    except RuntimeError:
        return None


def _name(module: nn.Module, tensors: dict[str, torch.Tensor]) -> str:
    said = repr([(name, str(one.dtype), tuple(one.shape)) for name, one in tensors.items()])
    return f"{type(module).__name__}-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def _is_module(one: object) -> bool:
    # `isinstance` asks the object for its class, which proxies answer with surprises.
    return issubclass(type(one), nn.Module) and "_parameters" in one.__dict__
