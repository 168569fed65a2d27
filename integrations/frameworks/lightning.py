"""The Lightning adapter: attaches at `Trainer.fit`'s loop, which counts batches, steps and epochs.

A restarted `fit` begins as if nothing had been: it calls the hooks of its first epoch and makes its loader's iterator.
Where its loop over batches begins, everything is put to where it was: the counters of all loops, callbacks, logged
values and the sums they are made of, and the training loader in the pass that was running. Lightning's own way to go on
from a checkpoint is not used, for it keeps neither the place in the data nor the sums of an epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lmr.integrations.frameworks import adapter, version
from lmr.integrations.frameworks.adapter import Framework
from lmr.integrations.frameworks.pytorch.session import Session

_MODULE = "lightning.pytorch.loops.fit_loop"
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
"""What is supported; others keep state in other places, or shard it."""
_LOGGED = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics")
_SUMS = ("value", "cumulated_batch_size")


def attach() -> None:
    """Wire into Lightning; called once, right after its loop was imported."""
    if not version.fits(_MODULE):
        return
    epoch = sys.modules["lightning.pytorch.loops.training_epoch_loop"]._TrainingEpochLoop
    results = sys.modules["lightning.pytorch.trainer.connectors.logger_connector.result"]._ResultCollection
    adapter.replace(sys.modules[_MODULE]._FitLoop, "run", _claiming)
    adapter.replace(epoch, "on_run_start", _placing)
    adapter.after(epoch, "advance", _advanced)
    adapter.replace(results, "update_metrics", _going_on_with_sums)


def _claiming(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def running(loop: Any) -> Any:
        session = adapter.session()
        if session is not None:
            adapter.guarded(session, "fit", lambda: _claim(session, loop))
        return run(loop)

    return running


def _claim(session: Session, loop: Any) -> None:
    strategy = type(loop.trainer.strategy).__name__
    if strategy not in _STRATEGIES:
        session.refuse_framework(f"Lightning's {strategy} is not supported, only {' and '.join(_STRATEGIES)}")
        return
    if loop.trainer.reload_dataloaders_every_n_epochs:
        session.degraded("position", "reload_dataloaders_every_n_epochs: a loader made anew begins anew")
    session.claim(Lightning(loop))


def _placing(on_run_start: Callable[..., Any]) -> Callable[..., Any]:
    def starting(epoch_loop: Any, data_fetcher: Any) -> Any:
        framework = _of(epoch_loop.trainer.fit_loop)
        session = adapter.session()
        if session is not None and framework is not None:
            _say_where_the_place_is_not_exact(session, data_fetcher)
        if session is not None and framework is not None and session.must_restore and not framework.is_placed:
            adapter.guarded(session, "fit", lambda: _place(session, framework, data_fetcher))
        return on_run_start(epoch_loop, data_fetcher)

    return starting


def _say_where_the_place_is_not_exact(session: Session, data_fetcher: Any) -> None:
    if data_fetcher.length is None:
        session.degraded("position", "a loader without a length: Lightning takes a batch ahead")
    if len(data_fetcher.combined_loader.flattened) > 1:
        session.degraded("position", "several loaders: Lightning begins those anew that are shorter")


def _place(session: Session, framework: Lightning, data_fetcher: Any) -> None:
    """Everything as it was where the pass over the data that was running had begun; then to the batch that was next."""
    framework.is_placed = True
    session.restore()
    fit_loop = framework.loop
    set_epoch = sys.modules[_MODULE]._set_sampler_epoch
    for loader in fit_loop._combined_loader.flattened:
        set_epoch(loader, fit_loop.epoch_progress.current.processed)
    session.begin_with_the_running_pass()
    if fit_loop.trainer.current_epoch == 0:  # for any later one what follows does it
        iter(data_fetcher)


def _advanced(session: Session, _result: Any, epoch_loop: Any, *_args: Any) -> None:
    if _of(epoch_loop.trainer.fit_loop) is not None and epoch_loop.global_step > session.steps.completed:
        session.step_completed(epoch_loop.global_step)


def _going_on_with_sums(update: Callable[..., Any]) -> Callable[..., Any]:
    """A value is logged: the sums of the epoch that were captured are what it is added to."""

    def updating(results: Any, key: str, *args: Any) -> Any:
        session = adapter.session()
        framework = None if session is None else session.objects.framework
        if isinstance(framework, Lightning) and key in framework.sums and results is framework.results:
            for name, value in framework.sums.pop(key).items():
                setattr(results[key], name, value)
        return update(results, key, *args)

    return updating


def _of(fit_loop: Any) -> Lightning | None:
    """The framework, if this is the loop that was claimed."""
    session = adapter.session()
    framework = None if session is None else session.objects.framework
    return framework if isinstance(framework, Lightning) and framework.loop is fit_loop else None


class Lightning(Framework):
    """One `fit`.

    Args:
        loop: its outermost loop.
    """

    name = "Lightning"

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.is_placed = False
        self.sums: dict[str, dict[str, torch.Tensor]] = {}
        """Of the epoch that was running, what has not been logged again yet."""

    @property
    def results(self) -> Any:
        """What is logged in training."""
        return self.loop.epoch_loop._results

    def models(self) -> list[nn.Module]:
        """The module as it is trained, in DDP or bare."""
        return [self.loop.trainer.strategy.model]

    def read(self) -> dict[str, Any]:
        """Counters of all loops, callbacks, logged values, and the sums of those that are means of an epoch."""
        trainer = self.loop.trainer
        connector = trainer._logger_connector
        sums = {
            key: {name: getattr(metric, name) for name in _SUMS if hasattr(metric, name)}
            for key, metric in self.results.items()
            if metric.is_tensor and not metric.has_reset
        }
        return {
            "loops": self.loop.state_dict(),
            "callbacks": _call()._call_callbacks_state_dict(trainer),
            "logged": {name: dict(getattr(connector, name)) for name in _LOGGED},
            "first": connector._first_loop_iter,
            "sums": sums,
            "metrics": [
                {name: getattr(one, name) for name in (*one._defaults, "_update_count")} for one in self._metrics()
            ],
            "should_stop": trainer.should_stop,
        }

    def write(self, state: dict[str, Any]) -> None:
        """Set them; none of the loops is to take it for a checkpoint that it goes on from."""
        trainer = self.loop.trainer
        self.loop.load_state_dict(state["loops"])
        for loop in (self.loop, *_loops(self.loop)):
            loop._restarting = loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
            loop.reset_restart_stage()
        _call()._call_callbacks_load_state_dict(trainer, {"callbacks": state["callbacks"]})
        for name, logged in state["logged"].items():
            setattr(trainer._logger_connector, name, dict(logged))
        trainer._logger_connector._first_loop_iter = state["first"]
        self.sums = dict(state["sums"])
        for one, captured in zip(self._metrics(), state["metrics"], strict=True):
            for name, value in captured.items():
                setattr(one, name, value)
        trainer.should_stop = state["should_stop"]

    def _metrics(self) -> list[Any]:
        """Metrics of torchmetrics that the module has: what they count is in no buffer."""
        kind = sys.modules["torchmetrics"].Metric
        return [one for one in self.loop.trainer.lightning_module.modules() if isinstance(one, kind)]


def _call() -> Any:
    return sys.modules["lightning.pytorch.trainer.call"]


def _loops(loop: Any) -> list[Any]:
    kind = sys.modules["lightning.pytorch.loops.loop"]._Loop
    inner = [one for one in vars(loop).values() if isinstance(one, kind)]
    return [*inner, *(deeper for one in inner for deeper in _loops(one))]
