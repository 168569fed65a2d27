"""Accelerate, without the Trainer: a loop of the script's own around what `Accelerator.prepare` returns.

Model, optimizer and scheduler are torch's own, in thin wrappers, and followed as such; the loop remains the script's,
so nothing is claimed. Only the loaders differ: they take a batch ahead to know when the last one is out, and their
order depends on how many passes they have counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from lmr.integrations.frameworks import adapter, version
from lmr.integrations.frameworks.pytorch.session import Session


def attach() -> None:
    """Wire into Accelerate's loaders; called once, right after their module was imported."""
    module = sys.modules["accelerate.data_loader"]
    adapter.replace(module.DataLoaderShard, "__iter__", lambda iterate: _telling(iterate, _follow))
    adapter.replace(module.DataLoaderDispatcher, "__iter__", lambda iterate: _telling(iterate, _not_exact))


def _telling(iterate: Callable[[Any], Any], tell: Callable[[Session, Any], None]) -> Callable[[Any], Any]:
    def iterating(self: Any) -> Any:
        session = adapter.session()
        if session is not None and not _is_of_a_framework(session):
            adapter.guarded(session, "loader position", lambda: tell(session, self))
        return iterate(self)

    return iterating


def _is_of_a_framework(session: Session) -> bool:
    """Whether someone else knows the place in the data: the Trainer uses these loaders, too."""
    framework = session.objects.framework
    return framework is not None and framework.owns_position


def _follow(session: Session, loader: Any) -> None:
    if not version.fits("accelerate.data_loader"):
        return
    inside = vars(loader).get("base_dataloader")
    if type(inside) is DataLoader:
        session.read_ahead(inside, loader)
    else:
        _not_exact(session, loader)


def _not_exact(session: Session, loader: Any) -> None:
    session.degraded("position", f"Accelerate's {type(loader).__name__} takes batches ahead of the loop")
