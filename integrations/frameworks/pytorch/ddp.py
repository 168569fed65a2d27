"""Gradient buckets of DDP, on which the order of floating-point sums depends.

DDP begins with buckets guessed from the parameters' order and rebuilds them after the first backward from the order in
which gradients became ready. Gloo's ring adds ranks in an order that depends on where in its bucket a gradient lies. A
restarted script would therefore take one step with other sums than the uninterrupted one, unless its reducer is made
with the buckets that were in use.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

Buckets = list[list[int]]

# What is used below is private in torch 2.13, so it is untyped here, guarded, and tested against the real thing.
_c10d: Any = dist
_known: weakref.WeakKeyDictionary[DistributedDataParallel, tuple[Any, Buckets]] = weakref.WeakKeyDictionary()


class LayoutUnknown(Exception):
    """DDP does not offer what is needed to read or set its buckets."""


def is_settled(ddp: DistributedDataParallel) -> bool:
    """Whether the buckets in use stay. After the first step of a process they may still be about to be rebuilt."""
    rebuilds = bool(ddp.static_graph) or not ddp.find_unused_parameters
    return bool(getattr(ddp, "_has_rebuilt_buckets", True)) or not rebuilds


def read(ddp: DistributedDataParallel) -> Buckets:
    """The buckets in use, as indices of parameters. Remembered until they are rebuilt: looking allocates all of them.

    Raises:
        LayoutUnknown: this DDP does not say.
    """
    version = (id(ddp.reducer), getattr(ddp, "_has_rebuilt_buckets", None))
    if ddp in _known and _known[ddp][0] == version and version[1] is not None:
        return _known[ddp][1]
    found = _look(ddp)
    _known[ddp] = (version, found)
    return found


def _look(ddp: DistributedDataParallel) -> Buckets:
    try:
        number = {id(p): i for i, p in enumerate(_parameters(ddp))}
        return [[number[id(p)] for p in bucket.parameters()] for bucket in ddp.reducer._get_zeros_like_grad_buckets()]
    except (AttributeError, KeyError, RuntimeError) as error:
        raise LayoutUnknown(f"the gradient buckets cannot be read: {error!r}") from None


def write(ddp: DistributedDataParallel, buckets: Buckets) -> None:
    """Make the reducer anew with these buckets.

    Raises:
        LayoutUnknown: this DDP cannot be given buckets; it is as it was.
    """
    parameters = _parameters(ddp)
    if sorted(i for bucket in buckets for i in bucket) != list(range(len(parameters))):
        raise LayoutUnknown("the captured gradient buckets are of another model")
    private: Any = ddp
    original = _c10d._compute_bucket_assignment_by_size

    def given(tensors: Any, limits: Any, *rest: Any, **named: Any) -> tuple[Buckets, list[int]]:
        _, per_bucket = original(tensors, limits, *rest, **named)
        largest = max(per_bucket, default=0)
        # DDP turns the list around: it expects parameters in forward order.
        return list(reversed(buckets)), [largest] * len(buckets)

    try:
        _, expect_sparse = private._build_params_for_reducer()
        names = private._build_debug_param_to_name_mapping(parameters)
        _c10d._compute_bucket_assignment_by_size = given
        try:
            private._ddp_init_helper(parameters, expect_sparse, names, ddp.static_graph)
        finally:
            _c10d._compute_bucket_assignment_by_size = original
        if ddp.static_graph:
            private.reducer._set_static_graph()
            private.logger._set_static_graph()
        for hook, state in getattr(ddp, "_comm_hooks", []):
            _c10d._register_comm_hook(ddp.reducer, state, hook)
    except (AttributeError, TypeError, RuntimeError) as error:
        raise LayoutUnknown(f"the gradient buckets cannot be set: {error!r}") from None


def _parameters(ddp: Any) -> list[Any]:
    parameters, _ = ddp._build_params_for_reducer()
    return list(parameters)


def peers(ddp: DistributedDataParallel) -> list[int]:
    """Global ranks that must hold the same parameters."""
    return sorted(dist.get_process_group_ranks(ddp.process_group))
