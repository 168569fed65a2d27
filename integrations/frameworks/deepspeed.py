"""The DeepSpeed adapter: attaches at `deepspeed.initialize` and counts as the engine counts.

ZeRO 0 to 2: parameters are whole on every rank; the optimizer works on flat 32-bit partitions, which are its parameters
and travel as such. ZeRO 3: a rank holds its part of each parameter (`ds_tensor`); small ones are kept gathered and are
gathered anew after a restore. A step is `_take_model_step`: with gradient accumulation `step` is called more often, and
ZeRO 3 steps its inner optimizer once a sub-group. A step skipped by an overflow counts, as `global_steps` counts it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lmr.integrations.frameworks import adapter, version
from lmr.integrations.frameworks.adapter import Framework
from lmr.integrations.frameworks.pytorch.session import Session
from lmr.integrations.frameworks.pytorch.state import named_tensors
from lmr.integrations.gemini.errors import StateUnknown

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps", "_unmanaged_backward_count")


def attach() -> None:
    """Wire into DeepSpeed; called once, right after it was imported."""
    if not version.fits("deepspeed"):
        return
    deepspeed = sys.modules["deepspeed"]
    adapter.after(deepspeed, "initialize", _initialized)
    engine = deepspeed.runtime.engine.DeepSpeedEngine
    adapter.after(engine, "_take_model_step", _stepped)
    adapter.after(engine, "load_checkpoint", _loaded)
    adapter.after(engine, "save_checkpoint", _saved)
    _keep_loaders_apart(deepspeed.runtime.dataloader.DeepSpeedDataLoader)


def _initialized(session: Session, result: Any, *_args: Any, **_kwargs: Any) -> None:
    engine = result[0]
    if not hasattr(engine, "_take_model_step") or not _inner(engine):
        return  # inference, or a model nobody trains
    present = session.objects.framework
    framework = present if isinstance(present, DeepSpeed) else DeepSpeed()
    session.claim(framework)
    framework.engines.append(engine)
    if session.must_restore and len(framework.engines) == 1:
        # Scripts look at `engine.global_steps` before the first batch.
        for name, value in session.peek()["engines"][0]["counters"].items():
            setattr(engine, name, value)


def _stepped(session: Session, _result: Any, engine: Any, *_args: Any, **_kwargs: Any) -> None:
    framework = session.objects.framework
    if isinstance(framework, DeepSpeed) and framework.engines and engine is framework.engines[0]:
        session.step_completed(engine.global_steps)


def _loaded(session: Session, _result: Any, engine: Any, *_args: Any, **_kwargs: Any) -> None:
    """The script loaded one of its own checkpoints: what the plan names is newer and is loaded after it."""
    framework = session.objects.framework
    if not isinstance(framework, DeepSpeed) or engine not in framework.engines:
        return
    if session.must_restore:
        session.restore()
    else:
        session.steps.completed = engine.global_steps


def _saved(
    session: Session, _result: Any, engine: Any, save_dir: str, tag: Any = None, *_args: Any, **_kwargs: Any
) -> None:
    """DeepSpeed's checkpoint lacks random states and the place in the data; what it takes to go on lies beside it."""
    framework = session.objects.framework
    if isinstance(framework, DeepSpeed) and framework.engines == [engine]:
        adapter.save_beside(session, Path(save_dir) / str(tag or f"global_step{engine.global_steps}"))


def _keep_loaders_apart(kind: Any) -> None:
    """DeepSpeed makes a new DataLoader for each pass over its data; to us all of these are one."""

    def wrapping(create: Any) -> Any:
        def creating(self: Any) -> Any:
            session = adapter.session()
            if session is None:
                return create(self)
            loaders = session.objects.loaders
            loaders.succeed(self.__dict__.get("_lmr_number"))
            try:
                made = create(self)
            finally:
                loaders.succeed(None)
            self.__dict__["_lmr_number"] = loaders.note(made)
            return made

        return creating

    adapter.replace(kind, "_create_dataloader", wrapping)


class DeepSpeed(Framework):
    """The engines of this process, in the order they were initialised; the first one's steps are the run's."""

    name = "DeepSpeed"

    def __init__(self) -> None:
        self.engines: list[Any] = []

    def models(self) -> list[nn.Module]:
        """What the engines train."""
        return [engine.module for engine in self.engines]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers; of a partitioned parameter the part that is here."""
        found = {}
        for name, tensor in named_tensors(self.models()).items():
            found[name] = _part(name, tensor) if hasattr(tensor, "ds_tensor") else tensor
        return found

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> list[list[torch.Tensor]]:
        """The flat partitions. ZeRO 3 puts them into the groups for the length of a step only."""
        for engine in self.engines:
            zero = engine.optimizer
            flat = getattr(zero, "fp32_partitioned_groups_flat", None)
            if flat is not None and _inner(engine) is optimizer:
                found: list[list[torch.Tensor]] = [[] for _ in optimizer.param_groups]
                for number, partition in enumerate(flat):
                    found[zero.sub_group_to_group_id[number]].append(partition)
                return found
        return super().parameters_of(optimizer)

    def replicated(self) -> tuple[list[torch.Tensor], list[int]] | None:
        """Parameters below ZeRO 3, and at stage 0 what the optimizer works on."""
        engine = self.engines[0]
        stage = engine.zero_optimization_stage()
        if len(self.engines) > 1 or stage >= 3:
            return None
        found = [p for p in engine.module.parameters() if getattr(p, "allreduce", True)]
        if stage == 0 and type(engine.optimizer).__name__ != "BF16_Optimizer":
            found += [p for group in _inner(engine).param_groups for p in group["params"]]
            found = list({id(p): p for p in found if getattr(p, "allreduce", True)}.values())
        return found, sorted(dist.get_process_group_ranks(engine.seq_data_parallel_group))

    def read(self) -> dict[str, Any]:
        """Counters, schedulers, loss scales, and the random states of activation checkpointing."""
        return {
            "engines": [
                {
                    "counters": {name: getattr(engine, name) for name in _COUNTERS if hasattr(engine, name)},
                    "scheduler": None if engine.lr_scheduler is None else engine.lr_scheduler.state_dict(),
                    "scaler": _plain(_scaler(engine)),
                }
                for engine in self.engines
            ],
            "tracker": _tracker().get_states(),
        }

    def write(self, state: dict[str, Any]) -> None:
        """Set them, and gather what ZeRO 3 keeps gathered."""
        for engine, captured in zip(self.engines, state["engines"], strict=True):
            for name, value in captured["counters"].items():
                setattr(engine, name, value)
            if captured["scheduler"] is not None:
                engine.lr_scheduler.load_state_dict(captured["scheduler"])
            for name, value in captured["scaler"].items():
                setattr(_scaler(engine), name, value)
            if hasattr(engine.optimizer, "checkpoint_event_epilogue"):
                engine.optimizer.checkpoint_event_prologue()
                engine.optimizer.checkpoint_event_epilogue()
        _tracker().set_states(state["tracker"])


def _inner(engine: Any) -> Any:
    """The torch optimizer at the core of an engine's optimizer; None when nothing is trained."""
    optimizer = engine.optimizer
    while optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = getattr(optimizer, "optimizer", None)
    return optimizer


def _part(name: str, parameter: Any) -> torch.Tensor:
    part = parameter.ds_tensor
    if getattr(part, "status", None) is not None and part.status.name != "AVAILABLE":
        raise StateUnknown(name, "partition that is not in memory (NVMe offload)")
    plain: torch.Tensor = part.data
    return plain


def _scaler(engine: Any) -> Any:
    """What holds the loss scale, None where there is none."""
    return getattr(engine.optimizer, "loss_scaler", None) or getattr(engine.optimizer, "loss_scale_config", None)


def _plain(scaler: Any) -> dict[str, Any]:
    if scaler is None:
        return {}
    return {name: value for name, value in vars(scaler).items() if type(value) in (bool, int, float)}


def _tracker() -> Any:
    checkpointing = sys.modules["deepspeed"].runtime.activation_checkpointing.checkpointing
    return checkpointing.get_cuda_rng_tracker()
