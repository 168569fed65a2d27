"""Where the session is told what the script does: constructors, optimizer steps, loader iterations, model calls.

Each hook is a thin wrapper around one function of torch. What fails on our side is caught here, said, and never reaches
the script; what the wrapped function raises is the script's own and passes through.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lmr.integrations.frameworks.pytorch.objects import Created
from lmr.integrations.frameworks.pytorch.session import Session


def install(session: Session) -> None:
    """Wire the session into torch; once a process."""
    objects = session.objects
    _note_created(torch.optim.Optimizer, objects.optimizers, session)
    _note_created(LRScheduler, objects.schedulers, session)
    _note_created(ReduceLROnPlateau, objects.schedulers, session)
    _note_created(torch.amp.GradScaler, objects.scalers, session)
    _note_created(DataLoader, objects.loaders, session)
    _follow_steps(session)
    _follow_iterations(session)
    _follow_calls(session)


def _note_created(kind: type, created: Created[Any], session: Session) -> None:
    original = kind.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        if session.mine:
            created.note(self)
        original(self, *args, **kwargs)

    kind.__init__ = noting  # type: ignore[misc]


def _follow_steps(session: Session) -> None:
    def began(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if session.mine:
            session.step_began(optimizer)

    def ended(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if session.mine:
            _guard(session, "step counting", lambda: session.step_ended(optimizer))

    register_optimizer_step_pre_hook(began)
    register_optimizer_step_post_hook(ended)


def _follow_iterations(session: Session) -> None:
    make: Callable[[Any], Any] = DataLoader.__iter__
    fetch: Callable[[Any], Any] = _BaseDataLoaderIter.__next__

    @functools.wraps(make)
    def iterate(self: Any) -> Any:
        if not session.mine:
            return make(self)
        made: list[Any] = []

        def making(loader: Any) -> Any:
            made.append(make(loader))
            return made[-1]

        try:
            return session.begin(self, making)
        except StopIteration:
            raise
        except Exception as error:
            if not made and _is_ours(error):
                session.fault("loader position", error)
                return make(self)
            if made:
                session.fault("loader position", error)
                return made[-1]
            raise

    @functools.wraps(fetch)
    def next_batch(self: Any) -> Any:
        followed = session.loaders.of(self) if session.mine else None
        if followed is None:
            return fetch(self)
        _guard(session, "capture", lambda: session.at_next(*followed))
        session.loaders.asked(followed[1])
        try:
            batch = fetch(self)
        except StopIteration:
            followed[1].ended = True
            raise
        session.loaders.gave(followed[1])
        return batch

    DataLoader.__iter__ = iterate  # type: ignore[method-assign]
    _BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign]


def _follow_calls(session: Session) -> None:
    """Calls of models matter until the state is restored, and in loops without a loader."""

    def called(module: nn.Module, _args: Any) -> None:
        if session.awaits_a_call and module.training and session.mine and torch.is_grad_enabled():
            _guard(session, "capture", lambda: session.at_forward(module))

    torch.nn.modules.module.register_module_forward_pre_hook(called)


def _guard(session: Session, where: str, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:  # noqa: BLE001  protection may fail, the script may not
        session.fault(where, error)


def _is_ours(error: BaseException) -> bool:
    """Whether an error was raised in this package, not in the script's dataset or sampler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "/frameworks/pytorch/" in trace.tb_frame.f_code.co_filename
