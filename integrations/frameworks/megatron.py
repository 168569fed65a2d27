"""The Megatron Core adapter: attaches at `get_megatron_optimizer`, which every Megatron training calls with its chunks.

State is the model chunks, what the torch optimizers inside Megatron's step on (with the distributed optimizer: this
rank's shards of master parameters), the parameter scheduler, gradient scalers and the random-state tracker. A step is a
call of the optimizer the script was given; one that finds infinities updates nothing and is an iteration all the same,
as Megatron counts.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lmr.integrations.frameworks import adapter, version
from lmr.integrations.frameworks.adapter import Framework
from lmr.integrations.frameworks.pytorch.session import Session

_schedulers: list[weakref.ref[Any]] = []


def attach() -> None:
    """Wire into Megatron Core; called once, right after its optimizers were imported."""
    if not version.fits("megatron.core.optimizer"):
        return
    optimizers = sys.modules["megatron.core.optimizer"]
    adapter.after(optimizers, "get_megatron_optimizer", _made)
    scheduling = importlib.import_module("megatron.core.optimizer_param_scheduler")
    adapter.after(scheduling.OptimizerParamScheduler, "__init__", _scheduler_made)


def _made(session: Session, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    chunks = kwargs["model_chunks"] if "model_chunks" in kwargs else args[1]
    framework = Megatron(list(chunks), optimizer)
    session.claim(framework)
    step = optimizer.step

    def stepping(*step_args: Any, **step_kwargs: Any) -> Any:
        result = step(*step_args, **step_kwargs)
        adapter.guarded(session, "step", session.step_completed)
        return result

    optimizer.step = stepping


def _scheduler_made(_session: Session, _result: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
    _schedulers.append(weakref.ref(scheduler))


class Megatron(Framework):
    """The model chunks of this rank and their optimizer.

    Args:
        chunks: as given to `get_megatron_optimizer`.
        optimizer: what it returned.
    """

    name = "Megatron Core"

    def __init__(self, chunks: list[nn.Module], optimizer: Any) -> None:
        self._chunks = chunks
        self._optimizer = optimizer

    def models(self) -> list[nn.Module]:
        """The chunks, in pipeline order."""
        return self._chunks

    def replicated(self) -> tuple[list[torch.Tensor], list[int]] | None:
        """Parameters of data-parallel peers with equal tensor, pipeline and context coordinates; no experts' ones.

        Megatron reduces gradients over data and context parallel ranks; the optimizer's state is equal there too unless
        it is distributed, when what it steps on are shards and not among these parameters.
        """
        groups = importlib.import_module("megatron.core.parallel_state")
        ranks = dist.get_process_group_ranks(groups.get_data_parallel_group(with_context_parallel=True))
        if len(ranks) < 2:
            return None
        found = [p for chunk in self._chunks for p in chunk.parameters() if getattr(p, "allreduce", True)]
        distributed = any(type(one).__name__ == "DistributedOptimizer" for one in self._all())
        if not distributed:
            for one in self._all():
                found += [p for group in one.param_groups for p in group["params"] if getattr(p, "allreduce", True)]
        return list({id(p): p for p in found}.values()), sorted(ranks)

    def read(self) -> dict[str, Any]:
        """Schedulers, gradient scalers and the random-state tracker."""
        scalers = [getattr(one, "grad_scaler", None) for one in self._all()]
        return {
            "schedulers": [s.state_dict() for s in _alive()],
            "scalers": [None if scaler is None else scaler.state_dict() for scaler in scalers],
            "tracker": dict(_tracker().get_states()),
        }

    def write(self, state: dict[str, Any]) -> None:
        """Set them. The scheduler first: it may touch learning rates, which the groups then have the last word on."""
        rates = [[(g.get("lr"), g.get("weight_decay")) for g in one.param_groups] for one in self._all()]
        for scheduler, captured in zip(_alive(), state["schedulers"], strict=True):
            scheduler.num_steps = 0  # loading adds the captured count to it
            scheduler.load_state_dict(captured)
        for one, captured_rates in zip(self._all(), rates, strict=True):
            for group, (lr, decay) in zip(one.param_groups, captured_rates, strict=True):
                group["lr"], group["weight_decay"] = lr, decay
        for one, captured in zip(self._all(), state["scalers"], strict=True):
            if captured is not None:
                one.grad_scaler.load_state_dict(captured)
        _tracker().set_states(state["tracker"])

    def _all(self) -> list[Any]:
        return list(getattr(self._optimizer, "chained_optimizers", [self._optimizer]))


def _alive() -> list[Any]:
    return [scheduler for ref in _schedulers if (scheduler := ref()) is not None]


def _tracker() -> Any:
    return importlib.import_module("megatron.core.tensor_parallel").get_cuda_rng_tracker()
