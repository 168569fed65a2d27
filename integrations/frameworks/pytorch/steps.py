"""Which optimizer steps are real, and how many there were."""

from __future__ import annotations

from torch.optim import Optimizer

from lmr.integrations.frameworks.pytorch.objects import Created


class Steps:
    """Counts completed steps of the primary optimizer: the first that steps, also in what a restarted script does.

    A subclass that calls `super().step()` runs the hooks once per level, so only the outermost end of a step counts.
    A step that GradScaler skips runs no hook and does not count.

    Args:
        optimizers: in creation order.
        begun_at: steps completed before this process began.
    """

    def __init__(self, optimizers: Created[Optimizer], begun_at: int) -> None:
        self._optimizers = optimizers
        self._depth: dict[int, int] = {}
        self.primary: int | None = None
        """Number of the optimizer whose steps count, once one has stepped."""
        self.completed = begun_at

    def began(self, optimizer: Optimizer) -> None:
        """A step, or a level of one, begins."""
        self._depth[id(optimizer)] = self._depth.get(id(optimizer), 0) + 1

    def ended(self, optimizer: Optimizer, *, counts: bool = True) -> bool:
        """A step, or a level of one, is complete; whether that completed a step of training.

        Args:
            optimizer: whose step it is.
            counts: whether steps of optimizers are steps of training.
        """
        depth = self._depth.get(id(optimizer), 1) - 1
        self._depth[id(optimizer)] = depth
        if depth > 0 or not counts:
            return False
        number = self._optimizers.note(optimizer)
        if self.primary is None:
            self.primary = number
        if number != self.primary:
            return False
        self.completed += 1
        return True

    def settle(self) -> None:
        """No step is in progress: one that ended in an exception the script handled has left a level open."""
        self._depth.clear()
