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

from lmr.integrations.frameworks.adapter import is_of_a_loader_worker
from lmr.integrations.frameworks.pytorch.objects import Created
from lmr.integrations.frameworks.pytorch.session import Session


def install(session: Session) -> None:
    """Wire the session into torch; once a process."""
    objects = session.objects
    _note_created(torch.optim.Optimizer, objects.optimizers, session)
    _note_created(LRScheduler, objects.schedulers, session)
    _note_created(ReduceLROnPlateau, objects.schedulers, session)
    _note_created(torch.amp.GradScaler, objects.scalers, session)
    follow_loaders(DataLoader, session)
    _follow_steps(session)
    _follow_batches(session)
    _follow_calls(session)
    _settle_before(nn.Module, "load_state_dict", session)
    _settle_before(torch.optim.Optimizer, "load_state_dict", session)


def _settle_before(owner: Any, name: str, session: Session) -> None:
    """What writes to parameters elsewhere than in a step: a copy that goes on must end first."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def settled(*args: Any, **kwargs: Any) -> Any:
        if session.copying and session.mine:
            _guard(session, "capture", session.settle)
        return original(*args, **kwargs)

    setattr(owner, name, settled)


def _note_created(kind: type, created: Created[Any], session: Session) -> None:
    original = kind.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        if session.mine:
            created.note(self)
        original(self, *args, **kwargs)

    kind.__init__ = noting  # type: ignore[misc]


def _follow_steps(session: Session) -> None:
    def began(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if session.mine:
            if any(map(callable, (*args[1:], *kwargs.values()))):
                _guard(session, "capture", session.at_closure)
            if session.copying:
                _guard(session, "capture", session.settle)
            _guard(session, "step", lambda: session.step_began(optimizer))

    def ended(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if session.mine:
            _guard(session, "step counting", lambda: session.step_ended(optimizer))

    register_optimizer_step_pre_hook(began)
    register_optimizer_step_post_hook(ended)


def follow_loaders(kind: type[Any], session: Session) -> None:
    """Follow the iterations of one class of loaders."""
    _note_created(kind, session.objects.loaders, session)
    make: Callable[[Any], Any] = kind.__iter__

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
            if is_of_a_loader_worker(error):
                raise
            if not made and _is_ours(error):
                session.fault("loader position", error)
                return make(self)
            if made:
                session.fault("loader position", error)
                return made[-1]
            raise

    kind.__iter__ = iterate


def _follow_batches(session: Session) -> None:
    fetch: Callable[[Any], Any] = _BaseDataLoaderIter.__next__

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

    _BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign]


def _follow_calls(session: Session) -> None:
    """Calls of models matter until the state is restored, and in loops without a loader."""

    def called(module: nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling():  # what follows changes from step to step: it would be compiled anew
            return
        if session.copying and session.mine:
            _guard(session, "capture", lambda: session.settle(wait=False))
        if session.awaits_a_call and module.training and session.mine and torch.is_grad_enabled():
            _guard(session, "capture", lambda: session.at_forward(module))

    torch.nn.modules.module.register_module_forward_pre_hook(called)


def _guard(session: Session, where: str, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        if is_of_a_loader_worker(error):
            raise
        session.fault(where, error)


def _is_ours(error: BaseException) -> bool:
    """Whether an error was raised in this package, not in the script's dataset or sampler."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "/frameworks/pytorch/" in trace.tb_frame.f_code.co_filename
