"""Phases of a training step, without the script's help.

    asks a loader for a batch           data, or eval where gradients are off
    calls the root module               forward, or eval where it is not training (in loops without a loader)
    puts a module into eval mode        eval
    backward                            backward; after the last gradient: reduce, which is waiting for the others
    an optimizer's step                 optimizer; its end completes a step
    torch.save, safetensors, dcp        checkpoint
    a compilation of dynamo             compile

Each hook stores a few words (`pulse`). What fails here is said once and never reaches the script.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.pulse import Pulse

IDLE, DATA, FORWARD, BACKWARD = int(Phase.IDLE), int(Phase.DATA), int(Phase.FORWARD), int(Phase.BACKWARD)
OPTIMIZER, EVAL, CHECKPOINT, COMPILE = int(Phase.OPTIMIZER), int(Phase.EVAL), int(Phase.CHECKPOINT), int(Phase.COMPILE)
PARAMETERS_WATCHED = 4096
"""Models with more parameter tensors do not get their last gradient looked for."""


def install(pulse: Pulse) -> None:
    """Wire the pulse into torch; once a process, before anything else wraps the loaders."""
    _follow_loaders(pulse)
    _follow_modules(pulse)
    _follow_backward(pulse)
    _Steps(pulse).install()
    _follow_saves(pulse)


# -- data -------------------------------------------------------------------------------------------------------------


def _follow_loaders(pulse: Pulse) -> None:
    fetch: Callable[[Any], Any] = _BaseDataLoaderIter.__next__
    make: Callable[[Any], Any] = DataLoader.__iter__
    grad_enabled = torch.is_grad_enabled

    @functools.wraps(fetch)
    def next_batch(self: Any) -> Any:
        if not grad_enabled():
            pulse.enter(EVAL)
            return fetch(self)
        pulse.enter(DATA)
        try:
            return fetch(self)
        finally:
            pulse.got_batch(FORWARD)

    @functools.wraps(make)
    def iterate(self: Any) -> Any:
        before = pulse.enter(Phase.DECLARED)  # starts worker processes
        try:
            return make(self)
        finally:
            pulse.enter(before)
            if grad_enabled():
                pulse.iterating()

    _BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign]
    DataLoader.__iter__ = iterate  # type: ignore[method-assign]


# -- forward ----------------------------------------------------------------------------------------------------------


def _follow_modules(pulse: Pulse) -> None:
    """The first module called with gradients on is the root; where no loader tells, its calls are followed."""

    def root_called(module: nn.Module, _args: Any) -> None:
        pulse.enter(FORWARD if module.training and torch.is_grad_enabled() else EVAL)

    def first_call(module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() and module.training and any(True for _ in module.parameters()):
            handle.remove()
            root_called(module, args)
            if not pulse.has_batches:  # loaders tell as much, for less
                module.register_forward_pre_hook(root_called)

    handle = nn.modules.module.register_module_forward_pre_hook(first_call)
    evaluate = nn.Module.eval

    @functools.wraps(evaluate)
    def begin_eval(self: nn.Module) -> nn.Module:
        if pulse.live and not torch.compiler.is_compiling():
            pulse.enter(EVAL)
        return evaluate(self)

    nn.Module.eval = begin_eval  # type: ignore[method-assign,assignment]


# -- backward ---------------------------------------------------------------------------------------------------------


def _follow_backward(pulse: Pulse) -> None:
    original = torch.autograd.backward
    losses = _Finiteness(pulse)

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        before = pulse.enter(BACKWARD)
        if before == EVAL or not pulse.live:  # gradients of an evaluation
            original(tensors, *args, **kwargs)
            return
        losses.look(tensors)
        try:
            original(tensors, *args, **kwargs)
        finally:
            pulse.backward_done()

    torch.autograd.backward = backward
    clip = nn.utils.clip_grad_norm_

    @functools.wraps(clip)
    def clipping(*args: Any, **kwargs: Any) -> torch.Tensor:
        norm = clip(*args, **kwargs)
        losses.look(norm)
        return norm

    nn.utils.clip_grad_norm_ = nn.utils.clip_grad.clip_grad_norm_ = clipping


class _Finiteness:
    """Looks at losses and norms without making an accelerator wait: there the answer is read once it has come."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._coming: list[tuple[Any, torch.Tensor]] = []

    def look(self, tensors: Any) -> None:
        """A loss or norm; what is not one number is not looked at."""
        try:
            tensor = tensors if isinstance(tensors, torch.Tensor) else tensors[0]
            if tensor.is_cpu:
                if not math.isfinite(tensor.item()):
                    self._pulse.not_finite()
            else:
                self._look_later(tensor)
        except Exception:  # noqa: BLE001  several numbers, a distributed tensor
            return

    def _look_later(self, tensor: torch.Tensor) -> None:
        self._coming = [(event, value) for event, value in self._coming if not self._arrived(event, value)]
        if tensor.numel() == 1 and tensor.is_floating_point() and len(self._coming) < 8:
            copy = tensor.detach().to("cpu", non_blocking=True)
            event = torch.Event(tensor.device.type)
            event.record()
            self._coming.append((event, copy))

    def _arrived(self, event: Any, value: torch.Tensor) -> bool:
        if not event.query():
            return False
        if not math.isfinite(value.item()):
            self._pulse.not_finite()
        return True


# -- optimizer --------------------------------------------------------------------------------------------------------


class _Steps:
    """Steps of the primary optimizer: the first to complete one. A subclass that calls `super().step()` counts once."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._primary: weakref.ref[torch.optim.Optimizer] | None = None
        self._depth = 0
        self._last = _LastGradient(pulse)
        self._later = {
            "torch._dynamo.callback": _follow_compilation,
            "torch.distributed.checkpoint.state_dict_saver": _follow_distributed_saves,
            "safetensors.torch": _follow_safetensors,
        }

    def install(self) -> None:
        register_optimizer_step_pre_hook(_harmless(self._began))
        register_optimizer_step_post_hook(_harmless(self._ended))
        original = torch.compile

        @functools.wraps(original)
        def compiling(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            self._look()  # the compiler has been loaded just now, and the first call comes before the next step's end
            return made

        torch.compile = compiling

    def _look(self) -> None:
        """Follow what has been imported since."""
        for module in [name for name in self._later if name in sys.modules]:
            try:
                self._later.pop(module)(self._pulse)
            except Exception as error:  # noqa: BLE001  observation may fail, training may not
                print(f"lmr: {module} is not followed: {error!r}", file=sys.stderr)

    def _began(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._primary is None or self._primary() is optimizer:
            self._depth += 1
        self._pulse.enter(OPTIMIZER)

    def _ended(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._primary is None:
            self._primary = weakref.ref(optimizer)
            self._last.begin(optimizer)
        elif self._primary() is not optimizer:
            self._pulse.enter(IDLE)
            return
        self._depth -= 1
        if self._depth > 0:
            return
        self._depth = 0
        self._pulse.stepped()
        self._last.stepped()
        self._look()


def _harmless(hook: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """torch lets an error of a step hook reach the script: ours is said once, and the hook is silent from then on."""
    broken = False

    def guarded(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal broken
        if broken:
            return
        try:
            hook(optimizer, args, kwargs)
        except Exception as error:  # noqa: BLE001  observation may fail, training may not
            broken = True
            print(f"lmr: this rank is observed no more: {error!r}", file=sys.stderr)

    return guarded


class _LastGradient:
    """Finds the parameter whose gradient comes last, in the second step, and marks its arrival from then on."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._handles: list[tuple[int, Any]] = []
        self._newest: int | None = None
        self._settled = False

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """The first step is complete: note the order of the gradients of the next."""
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        shapes = [(tuple(p.shape), str(p.dtype)) for p in parameters[:PARAMETERS_WATCHED]]
        self._pulse.role(type(optimizer).__name__, len(parameters), *shapes)
        # A view of a parameter (a shard of a distributed optimizer) has no gradient hook of its own.
        plain = all(p.is_leaf and type(p) in (nn.Parameter, torch.Tensor) for p in parameters)
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if not distributed or not plain or len(parameters) > PARAMETERS_WATCHED:
            # The gradient of a sharded parameter is there after its reduction, which is what is to be told from it.
            self._settled = True
            return
        for number, parameter in enumerate(parameters):
            handle = parameter.register_post_accumulate_grad_hook(functools.partial(self._came, number))
            self._handles.append((number, handle))

    def _came(self, number: int, _parameter: torch.Tensor) -> None:
        if self._settled:
            self._pulse.reducing()
        else:
            self._newest = number

    def stepped(self) -> None:
        """A step is complete."""
        if self._settled or self._newest is None:
            return
        self._settled = True
        for number, handle in self._handles:
            if number != self._newest:
                handle.remove()


# -- long sections ----------------------------------------------------------------------------------------------------


def _follow_saves(pulse: Pulse) -> None:
    torch.save = as_save(pulse, torch.save)


def _follow_distributed_saves(pulse: Pulse) -> None:
    """Functions a script took out of the package before its first step are not seen; calls through the package are."""
    saver = sys.modules["torch.distributed.checkpoint.state_dict_saver"]
    package = sys.modules["torch.distributed.checkpoint"]
    for name in ("save", "async_save"):
        original = getattr(saver, name, None)
        if original is None:
            continue
        wrapped = as_save(pulse, original)
        for module in (saver, package):
            if getattr(module, name, None) is original:
                setattr(module, name, wrapped)


def _follow_safetensors(pulse: Pulse) -> None:
    """What all its ways to save to a file call, under the name they look up when they are called."""
    module: Any = sys.modules["safetensors.torch"]
    original = getattr(module, "serialize_file", None)
    if original is not None:
        module.serialize_file = as_save(pulse, original)


def as_save(pulse: Pulse, original: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in the phase `checkpoint`."""

    @functools.wraps(original)
    def saving(*args: Any, **kwargs: Any) -> Any:
        before = pulse.enter(CHECKPOINT)
        if before == CHECKPOINT:
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            pulse.saved(before)

    return saving


def _follow_compilation(pulse: Pulse) -> None:
    try:
        from torch._dynamo.callback import callback_handler
    except ImportError:
        return
    before: list[int] = []
    callback_handler.register_start_callback(lambda _args: before.append(pulse.enter(COMPILE)))
    callback_handler.register_end_callback(lambda _args: before and pulse.enter(before.pop()))  # type: ignore[arg-type]
