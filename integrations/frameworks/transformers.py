"""The Hugging Face adapter: attaches at `transformers.Trainer`, which counts, logs, and finds its place in the data.

A restarted `train()` is led where the Trainer itself would go on from one of its checkpoints: the same code skips the
batches of an epoch that were used, and what it would read from files comes from the captured state. The Trainer loads
the batches of a step before it trains on them, so a capture is made when a step is complete and logged, saved and
evaluated, and random state is set where the Trainer sets it: after the first batches were loaded.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from torch import nn

from lmr.integrations.frameworks import adapter, version
from lmr.integrations.frameworks.adapter import Framework
from lmr.integrations.frameworks.pytorch import rng
from lmr.integrations.frameworks.pytorch.session import Session

_MEANS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "current_flos")
_RESUMED = "captured by LM Resiliency"
"""Stands for the folder of a checkpoint: the Trainer leads its loaders on when there is one."""


def attach() -> None:
    """Wire into the Trainer; called once, right after its module was imported."""
    if not version.fits("transformers.trainer"):
        return
    module = sys.modules["transformers.trainer"]
    trainer = module.Trainer
    _begin_where_captured(trainer)
    _set_what_files_would_hold(trainer)
    adapter.after(trainer, "_prepare_for_training", _prepared)
    adapter.after(module.CallbackHandler, "on_step_end", _step_done)
    adapter.after(trainer, "_save_checkpoint", _saved)
    adapter.after(trainer, "_maybe_log_save_evaluate", _between_steps)


def _prepared(session: Session, _result: Any, trainer: Any, *_args: Any, **_kwargs: Any) -> None:
    framework = HuggingFace(trainer)
    session.claim(framework)
    if trainer.args.ignore_data_skip:
        session.degraded("position", "ignore_data_skip: a restarted epoch begins with its first batch")
    if session.must_restore:
        session.restore()
        framework.rng = rng.read()


def _step_done(session: Session, _result: Any, _handler: Any, _args: Any, state: Any, *_more: Any) -> None:
    session.step_completed(state.global_step)


def _saved(session: Session, _result: Any, trainer: Any, _model: Any, trial: Any) -> None:
    folder = Path(trainer._get_output_dir(trial=trial))
    adapter.save_beside(session, folder / f"checkpoint-{trainer.state.global_step}")


def _between_steps(session: Session, *_args: Any, **_kwargs: Any) -> None:
    """The step is logged, evaluated and saved. Once more after an epoch: there is nothing new then."""
    session.at_boundary()


def _begin_where_captured(trainer_class: Any) -> None:
    def wrapping(initial: Any) -> Any:
        def initialized(
            self: Any, max_steps: int, steps_an_epoch: int, epochs: int, resume_from_checkpoint: Any, trial: Any
        ) -> Any:
            place = initial(self, max_steps, steps_an_epoch, epochs, resume_from_checkpoint, trial)
            session = adapter.session()
            if session is None or not session.must_restore:
                return place
            found: list[Any] = []

            def take_over() -> None:
                self.state = type(self.state)(**json.loads(session.peek()["state"]))
                self._load_callback_state()
                self.state.init_training_references(self, max_steps, epochs, trial)
                done, into = divmod(self.state.global_step, steps_an_epoch)
                found.extend((done, into * self.args.gradient_accumulation_steps))

            adapter.guarded(session, "train", take_over)
            return tuple(found) or place

        return initialized

    adapter.replace(trainer_class, "_init_training_state", wrapping)


def _set_what_files_would_hold(trainer_class: Any) -> None:
    def leading(run_epoch: Any) -> Any:
        def running(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _restored(self) is not None:
                kwargs["resume_from_checkpoint"] = kwargs.get("resume_from_checkpoint") or _RESUMED
            return run_epoch(self, *args, **kwargs)

        return running

    def setting(load_rng: Any) -> Any:
        def loading(self: Any, checkpoint: Any) -> Any:
            framework = _restored(self)
            if framework is None:
                return load_rng(self, checkpoint)
            for name, value in framework.means.items():
                setattr(self, name, value)
            rng.write(framework.rng)
            framework.rng = None
            return None

        return loading

    adapter.replace(trainer_class, "_run_epoch", leading)
    adapter.replace(trainer_class, "_load_rng_state", setting)


def _restored(trainer: Any) -> HuggingFace | None:
    """The framework, while state that it restored is not all in place."""
    session = adapter.session()
    framework = None if session is None else session.objects.framework
    if isinstance(framework, HuggingFace) and framework.trainer is trainer and framework.rng is not None:
        return framework
    return None


class HuggingFace(Framework):
    """One Trainer.

    Args:
        trainer: whose model, optimizer and schedule are made.
    """

    name = "Hugging Face Trainer"
    owns_position = True

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.rng: Any = None
        """Random state that is to be set once the first batches are loaded."""
        self.means: dict[str, Any] = {}
        """Sums since the last logging, by attribute."""

    def models(self) -> list[nn.Module]:
        """The model as it is trained, in DDP or sharded."""
        return [self.trainer.model_wrapped]

    def read(self) -> dict[str, Any]:
        """Counters, history, callbacks, and the sums that the next log is made of."""
        return {
            "state": json.dumps(dataclasses.asdict(self.trainer.state)),
            "means": {name: getattr(self.trainer, name) for name in _MEANS},
        }

    def write(self, state: dict[str, Any]) -> None:
        """The Trainer resets its sums before the first step, so they are set later."""
        self.means = state["means"]
