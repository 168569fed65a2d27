"""The TorchTitan adapter: attaches at `CheckpointManager`, which knows all state and is called at each step's end.

The trainer itself may be `__main__` (`python -m torchtitan.train`), where nothing can be attached to its class. Its
checkpoint manager is always imported: made with model parts, optimizers, schedulers, data loader and the trainer; asked
to load before the first step, and to save after every step, whether or not checkpoints are enabled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from lmr.integrations.frameworks import adapter, version
from lmr.integrations.frameworks.adapter import Framework
from lmr.integrations.frameworks.pytorch.session import Session

_STATES = ("dataloader", "lr_scheduler", "train_state")


def attach() -> None:
    """Wire into TorchTitan; called once, right after its checkpointing was imported."""
    if not version.fits("torchtitan.components.checkpoint"):
        return
    manager = sys.modules["torchtitan.components.checkpoint"].CheckpointManager
    adapter.after(manager, "__init__", _made)
    adapter.after(manager, "load", _loaded)
    adapter.replace(manager, "save", _stepping)


def _made(session: Session, _result: Any, manager: Any, *_args: Any, **_kwargs: Any) -> None:
    session.claim(TorchTitan(manager.states))


def _loaded(session: Session, _result: Any, _manager: Any, *_args: Any, **_kwargs: Any) -> None:
    """TorchTitan took its own checkpoint, if it has one; what the plan names is newer."""
    if session.must_restore:
        session.restore()


def _stepping(save: Callable[..., Any]) -> Callable[..., Any]:
    """The step counts before TorchTitan saves it, and is captured after."""

    def saving(manager: Any, curr_step: int, *args: Any, **kwargs: Any) -> Any:
        session = adapter.session()
        if session is None:
            return save(manager, curr_step, *args, **kwargs)
        adapter.guarded(session, "save", lambda: session.step_completed(curr_step))
        result = save(manager, curr_step, *args, **kwargs)
        adapter.guarded(session, "save", session.at_boundary)
        return result

    return saving


class TorchTitan(Framework):
    """What a checkpoint manager was made with.

    Args:
        states: by TorchTitan's names.
    """

    name = "TorchTitan"
    owns_position = True

    def __init__(self, states: dict[str, Any]) -> None:
        self._states = states

    def models(self) -> list[nn.Module]:
        """The model parts of this pipeline rank."""
        return list(self._states["model"].model)

    def read(self) -> dict[str, Any]:
        """The place in the data, schedulers, and the trainer's counters, as TorchTitan saves them."""
        return {name: self._states[name].state_dict() for name in _STATES if self._states.get(name) is not None}

    def write(self, state: dict[str, Any]) -> None:
        """Load them as TorchTitan does."""
        for name, captured in state.items():
            self._states[name].load_state_dict(captured)
