"""Hooks the injector into torch, in the trainer of a script that knows nothing of it.

Hooks on loaders and optimizers are there before anybody else's, so that what they do seems to come from below. Calls of
collectives are changed from above, as if the script had made them so: whoever observes them sees what is really called.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


def install() -> None:
    """Attach when torch is imported. The interpreter has only just started: nothing else may be loaded yet."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the others find torch, and attaches when it has been loaded."""

    def __init__(self) -> None:
        self._waiting = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch" or not self._waiting:
            return None
        self._waiting = False
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        attach()


def attach() -> None:
    """Hook loaders, modules and optimizers now, collectives when the script makes its process group."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    from lmr.integrations.faults.inside import batches, messages
    from lmr.integrations.faults.inside.injector import Injector

    injector = Injector()
    batches.install(injector)
    register_module_forward_pre_hook(lambda _module, _args: injector.forward())
    register_optimizer_step_pre_hook(lambda optimizer, _args, _kwargs: injector.before_update(optimizer))
    register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: injector.after_update(optimizer))
    original = c10d.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        messages.install(injector)
        return made

    c10d.init_process_group = dist.init_process_group = init_process_group
