"""Calls an adapter once its framework has been imported, by wrapping that one module's loader.

The finder sits in front of the others, lets them find the module, wraps `exec_module` of the loader they chose, and
puts the loader back when the module has run. `builtins.__import__` is left alone.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from lmr.integrations.frameworks import registry


def install() -> None:
    """Attach adapters to frameworks imported from here on; one that is already imported is attached now."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    waiting = {}
    for framework, adapter in registry.adapters().items():
        if framework in sys.modules:
            _attach(framework, adapter)
        else:
            waiting[framework] = adapter
    sys.meta_path.insert(0, _Finder(waiting))


def _attach(framework: str, adapter: str) -> None:
    try:
        module = importlib.import_module(adapter)
        from lmr.integrations.frameworks.adapter import attach_whole

        attach_whole(module.attach)
    except Exception as error:  # noqa: BLE001  protection may fail, the user's import may not
        tested = registry.tested(framework)
        why = f"{error!r}{tested and f'; {tested}'}"
        print(f"lmr: {adapter} could not attach, this worker runs unprotected: {why}", file=sys.stderr)
        _protect_nothing(why)


def _protect_nothing(why: str) -> None:
    """What follows torch alone would capture half of a framework's state: better none, and said."""
    from lmr.integrations.frameworks.adapter import session

    found = session()
    if found is not None:
        found.refuse_framework(why)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself; wraps the loader of each framework once."""

    def __init__(self, waiting: dict[str, str]) -> None:
        self._waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        adapter = self._waiting.pop(fullname, None)
        if adapter is None:
            return None
        # `fullname` is no longer waited for, so that this search passes through here without effect.
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            self._waiting[fullname] = adapter
            return None
        spec.loader = _AttachingLoader(spec.loader, fullname, adapter)
        return spec


class _AttachingLoader(importlib.abc.Loader):
    """Runs the module with its own loader, then attaches."""

    def __init__(self, loader: importlib.abc.Loader, framework: str, adapter: str) -> None:
        self._loader = loader
        self._framework = framework
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        # `python -m` and resource readers ask the loader for more than the two methods of importing.
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _attach(self._framework, self._adapter)
