"""Collectives as the script calls them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from lmr.integrations.faults.inside.injector import Injector

_CALLS = ("all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_gather")
_installed = False


class _Done:
    """What an asynchronous call that never was returns."""

    def wait(self, _timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def install(injector: Injector) -> None:
    """Stand between the script and the public collectives; once a process."""
    global _installed
    if _installed:
        return
    _installed = True
    later: list[Callable[[], Any]] = []
    for name in _CALLS:
        original = getattr(c10d, name)
        wrapped = _wrapped(original, injector, later)
        for module in (c10d, dist):
            setattr(module, name, wrapped)


def _wrapped(original: Callable[..., Any], injector: Injector, later: list[Callable[[], Any]]) -> Callable[..., Any]:
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if not injector.active or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        for _ in injector.due("drop", target="collective"):
            return _Done() if kwargs.get("async_op") else None
        for _ in injector.due("duplicate", target="collective"):
            original(*args, **kwargs)
        for _ in injector.due("reorder", target="collective"):
            later.append(lambda: original(*args, **kwargs))
            return _Done() if kwargs.get("async_op") else None
        for _ in injector.due("collective_desync"):
            return _other(args, kwargs)
        result = original(*args, **kwargs)
        while later:
            later.pop()()
        return result

    return collective


def _other(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Another operation on the same tensor, as a rank calls it that took another branch of the script."""
    tensor = args[0] if args else kwargs["tensor"]
    return dist.all_gather([torch.empty_like(tensor) for _ in range(dist.get_world_size())], tensor)
