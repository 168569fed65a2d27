"""Public `torch.distributed` calls, wrapped once: sequence and fingerprint of each, and the time spent waiting in it.

A fingerprint holds what all members must agree on: the operation, the group, the element type, the reduction, the
source rank, and the number of elements where the operation demands equal sizes. Sends and receives have no common
sequence; only their waiting is told. What calls C++ directly (the reducer of DDP) or was bound before torch was
attached is not seen.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from lmr.integrations.scout.pulse import Pulse, stable_hash

_EQUAL_SIZES = ("all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
_TENSORS = (*_EQUAL_SIZES, "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all_single", "all_to_all")
_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list")
_BARRIERS = ("barrier", "monitored_barrier")
_POINT_TO_POINT = ("send", "recv")
_SIZED_BY = {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 0, "all_gather": 1, "reduce_scatter": 0}
"""Which argument stands for the call; the first where not said."""


def install(pulse: Pulse) -> None:
    """Wrap every public collective and `Work.wait`; once a process."""
    if not dist.is_available():
        return
    inside = _Depth()
    for name in (*_TENSORS, *_OBJECTS, *_BARRIERS):
        _replace(name, functools.partial(_followed, name=name, pulse=pulse, inside=inside))
    for name in _POINT_TO_POINT:
        _replace(name, functools.partial(_timed, pulse=pulse, inside=inside))
    work = getattr(torch._C._distributed_c10d, "Work", None)
    if work is not None:
        work.wait = _timed(work.wait, pulse, inside)


def _replace(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(c10d, name, None)
    if original is None:
        return
    wrapped = wrap(original)
    for module in (c10d, dist):
        if getattr(module, name, None) is original:
            setattr(module, name, wrapped)


class _Depth:
    """How deep inside a followed call the process is: what a collective calls itself is part of it."""

    def __init__(self) -> None:
        self.calls = 0


def _followed(original: Callable[..., Any], name: str, pulse: Pulse, inside: _Depth) -> Callable[..., Any]:
    where: _Arguments | None = None
    prints: dict[Any, int] = {}
    compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if compiling() or inside.calls or not pulse.live:
            return original(*args, **kwargs)
        nonlocal where
        try:
            if where is None:  # only now: reading all signatures would be a fifth of what attaching costs every start
                where = _Arguments(original, name)
            place = _place(pulse, where.group(args, kwargs))
            key = None if place is None else (place, *where.agreed(args, kwargs))
            if key is not None and key not in prints:
                prints[key] = _fingerprint(pulse, name, key)
        except Exception:  # noqa: BLE001  an argument the call itself will refuse
            key = None
        if key is None:
            return original(*args, **kwargs)
        sequence = pulse.entered(key[0], prints[key])
        inside.calls += 1
        try:
            return original(*args, **kwargs)
        finally:
            inside.calls -= 1
            pulse.done(key[0], sequence)

    return collective


def _timed(original: Callable[..., Any], pulse: Pulse, inside: _Depth) -> Callable[..., Any]:
    compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def waiting(*args: Any, **kwargs: Any) -> Any:
        if compiling() or inside.calls or not pulse.wait_began():
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            pulse.wait_ended()

    return waiting


def _fingerprint(pulse: Pulse, name: str, key: tuple[Any, ...]) -> int:
    parts = [str(part) for part in key[1:] if part is not None]
    found = stable_hash(name, *parts)
    pulse.describe(found, " ".join([name, *parts]))
    return found


def _place(pulse: Pulse, group: Any) -> int | None:
    """Where the group stands in the page; None when it cannot be followed."""
    name = getattr(c10d._get_default_group() if group is None else group, "group_name", None)
    if name is None:  # not a member
        return None
    at = pulse.place_of(name)
    if at is None:
        ranks = dist.get_process_group_ranks(group)
        at = pulse.add_group(name, None if len(ranks) == dist.get_world_size() else ranks)
    return at


class _Arguments:
    """Finds a call's arguments by the original's signature."""

    def __init__(self, original: Callable[..., Any], name: str) -> None:
        parameters = inspect.signature(original).parameters
        names = list(parameters)
        self._usual_op = parameters["op"].default if "op" in parameters else None
        self._at = {parameter: number for number, parameter in enumerate(names)}
        self._has_tensor = name in _TENSORS
        self._has_size = name in _EQUAL_SIZES
        self._tensor = names[_SIZED_BY.get(name, 0)] if self._has_tensor else ""
        # `dst` and `src` are equal on all ranks; `tag` and the like are not asked for.
        self._named = [p for p in ("src", "dst", "group_src", "group_dst") if p in self._at]

    def group(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._get("group", args, kwargs)

    def agreed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """What the members must agree on besides operation and group."""
        found: list[Any] = []
        if self._has_tensor:
            tensor = self._get(self._tensor, args, kwargs)
            if isinstance(tensor, (list, tuple)):
                tensor = tensor[0]
            found = [tensor.dtype, tensor.numel() if self._has_size else None]
        op = self._get("op", args, kwargs) or self._usual_op
        if op is not None:
            found.append(str(op).rpartition(".")[2])
        for name in self._named:
            value = self._get(name, args, kwargs)
            if value is not None:
                found.append(f"{name}={value}")
        return tuple(found)

    def _get(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        at = self._at.get(name)
        return args[at] if at is not None and at < len(args) else None
