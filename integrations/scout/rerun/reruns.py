"""When calls are computed again in a trainer, and what is told of it.

At an iteration boundary, every so many steps: the next call in turn, twice with the same seed. Twice, because a rank
that disagrees with itself is at fault whatever the others say, unless they all do: then the kernel is not
deterministic.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lmr.integrations.scout.rerun.recipes import Recipes
from lmr.integrations.scout.rerun.specs import NotRepeatable, surroundings

Tell = Callable[[dict[str, Any]], None]


class Reruns:
    """The checks of one rank.

    Args:
        settings: the table `[replay.rerun]`.
        models: the outermost modules that are trained.
        optimizers: that train them.
        tell: hands one result to the node's agent.
        refused: called with what cannot be computed again, and why.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        models: Callable[[], list[nn.Module]],
        optimizers: Callable[[], list[torch.optim.Optimizer]],
        tell: Tell,
        refused: Callable[[str, str], None],
    ) -> None:
        self._every_steps = int(settings["every_steps"])
        self._seeds = int(settings["seeds"])
        self._most_bytes = int(settings["most_bytes"])
        self._models = models
        self._optimizers = optimizers
        self._tell = tell
        self._refused = refused
        self._recipes: Recipes | None = None

    def at_boundary(self, step: int) -> None:
        """A step is complete and nothing writes until the next.

        Args:
            step: optimizer steps completed.
        """
        if self._recipes is None:
            self._recipes = Recipes(self._models(), self._optimizers(), self._most_bytes, self._refused)
        self._recipes.at_boundary()
        if step % self._every_steps:
            return
        number = step // self._every_steps
        turn = self._recipes.turn(number)
        if turn is None:
            self._tell({"step": step, "recipe": "", "call": "", "digests": ["", ""]})
            return
        name, recipe, around = turn
        seed = around % self._seeds
        begun_ns = time.perf_counter_ns()
        try:
            identity = f"{recipe.text()}{surroundings(recipe.device)}{seed}"
            runs = [recipe.run(seed), recipe.run(seed)]
        except (NotRepeatable, torch.OutOfMemoryError, RuntimeError, TypeError, ValueError) as error:
            self._recipes.drop(name, str(error) or type(error).__name__)
            self._tell({"step": step, "recipe": "", "call": "", "digests": ["", ""]})
            return
        self._tell(
            {
                "step": step,
                "recipe": name,
                "call": hashlib.sha256(identity.encode()).hexdigest()[:32],
                "digests": runs,
                "took_us": (time.perf_counter_ns() - begun_ns) // 1000,
                "bytes": recipe.nbytes,
            }
        )
