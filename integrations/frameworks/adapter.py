"""The contract between a framework on top of torch and the session that protects a trainer.

The PyTorch adapter follows torch's own objects: optimizers, schedulers, data loaders, random state. A framework's
adapter is a subclass of `Framework` that says only what torch cannot know: which models are trained, where else state
lives, what counts as a step. It hands itself to `Session.claim` where the framework is initialised, and calls
`Session.step_completed` where the framework completes a step. docs/adapters.md walks through one.
"""

from __future__ import annotations

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from torch import nn

    from lmr.integrations.frameworks.pytorch.session import Session

__all__ = [
    "Framework",
    "FrameworkConflict",
    "after",
    "guarded",
    "replace",
    "save_beside",
    "session",
]


class FrameworkConflict(RuntimeError):
    """Two frameworks claim the same process; raised where the second one is initialised."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(
            f"{first} already trains in this process, {second} cannot be protected beside it: LM Resiliency follows "
            f"one framework a process. Use one of them, or set enable_checkpoint = false in the worker policy."
        )
        self.first = first
        self.second = second


class Framework(ABC):
    """One framework's training in this process. Methods are called at step boundaries only, when no step is running."""

    name: ClassVar[str]
    """As users call it."""
    owns_position: ClassVar[bool] = False
    """Whether `read` and `write` carry the place in the data. Otherwise torch's DataLoaders are followed."""

    is_placed: bool = True
    """Whether the loop is where a training loader that is iterated is to be led on, as a script's own loop always is.

    Otherwise the framework goes on in the middle: see `Session.begin_with_the_running_pass`.
    """

    @abstractmethod
    def models(self) -> list[nn.Module]:
        """The trained modules, outermost, in an order that a restarted script repeats."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """Live tensors by name that a restore overwrites in place: parameters, buffers, master weights, flat buffers.

        Optimizer state is not among them. A restarted script must offer the same names and shapes.
        """
        from lmr.integrations.frameworks.pytorch.state import named_tensors

        return named_tensors(self.models())

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> list[list[torch.Tensor]]:
        """The tensors that key `optimizer.state`, a list for each parameter group."""
        return [list(group["params"]) for group in optimizer.param_groups]

    def replicated(self) -> tuple[list[torch.Tensor], list[int]] | None:
        """Tensors that hold the same bits on all peers, and the peers' global ranks, this one included.

        Only what the framework keeps equal by synchronising it; None where nothing is replicated. The state of an
        optimizer counts as replicated where its parameters do; name such parameters only if that is true. By default
        what torch's own wrappers keep equal: DDP, and the replicas of hybrid sharding.
        """
        from lmr.integrations.frameworks.pytorch.state import replicas

        return replicas(self.models())

    def read(self) -> dict[str, Any]:
        """Everything else: counters, schedulers, scalers, random states. Plain values and tensors."""
        return {}

    def write(self, state: dict[str, Any]) -> None:  # noqa: B027  nothing to do is right for many
        """Set everything to what `read` returned. Runs after the tensors and the optimizers were written."""


def session() -> Session | None:
    """This trainer's session; None where there is none, as outside a supervised worker."""
    from lmr.integrations.frameworks import pytorch

    found = pytorch.current()
    return found if found is not None and found.mine else None


_replaced: list[tuple[Any, str, Any]] = []
"""What adapters have put something of theirs in place of: owner, name, and what was there."""


def replace(owner: Any, name: str, wrapping: Callable[[Any], Any]) -> None:
    """Put `wrapping(original)` in place of `owner.name`; undone if the adapter then fails to attach.

    Raises:
        AttributeError: there is no such function; the adapter then does not fit this version of its framework.
    """
    original = getattr(owner, name)
    _replaced.append((owner, name, vars(owner).get(name, original)))
    setattr(owner, name, functools.wraps(original)(wrapping(original)))


def after(owner: Any, name: str, action: Callable[..., None]) -> None:
    """Wrap `owner.name` so that `action(session, result, *args, **kwargs)` runs once it has returned.

    What fails in `action` is said and never reaches the script, except a `FrameworkConflict`.

    Raises:
        AttributeError: there is no such function; the adapter then does not fit this version of its framework.
    """

    def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            found = session()
            if found is not None:
                guarded(found, name, lambda: action(found, result, *args, **kwargs))
            return result

        return wrapped

    replace(owner, name, wrapping)


def attach_whole(attach: Callable[[], None]) -> None:
    """Run an adapter's `attach`; if it fails, the framework is left as it was, not half wrapped."""
    before = len(_replaced)
    try:
        attach()
    except BaseException:
        while len(_replaced) > before:
            owner, name, original = _replaced.pop()
            setattr(owner, name, original)
        raise


def save_beside(found: Session, folder: Path) -> None:
    """Save this step's state into the folder of a checkpoint that the framework has just written: the durable tier.

    Called by every rank at once with the same folder, between two steps. It is one more `torch.distributed.checkpoint`
    in the folder's `lm_resiliency`, of all state; the framework's own loading does not look at it. When it cannot be
    written that is said, and what is kept in memory is as before.
    """
    if not found.protects_durably:
        return
    checkpoint = importlib.import_module("torch.distributed.checkpoint")
    failed: type[BaseException] = checkpoint.api.CheckpointException  # no `Exception`: torch means it to end the script
    try:
        checkpoint.save({}, checkpoint_id=str(folder / "lm_resiliency"))  # followed by us under this name
    except (failed, OSError) as error:
        found.degraded("durable checkpoints", repr(error))


def guarded(found: Session, where: str, action: Callable[[], None]) -> None:
    """Run something of ours inside the script's own call."""
    try:
        action()
    except FrameworkConflict:
        raise
    except Exception as error:
        if is_of_a_loader_worker(error):
            raise
        found.fault(where, error)


def is_of_a_loader_worker(error: BaseException) -> bool:
    """Whether torch raised it because a DataLoader worker died: from a signal handler, wherever the program then is.

    It is the script's own, also where it strikes in the middle of what we do.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.endswith("data/_utils/signal_handling.py")
