"""Lineage: which steps of earlier generations training still stands on.

A plan that restores step r throws away everything above r. So a fact of generation g about step s counts only while no
later plan restored a step below s.
"""

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(slots=True)
class Lineage:
    """The restored steps that still limit earlier generations.

    Both lists rise: a lower restore replaces every later-looking one, so a lookup is one bisection.
    """

    generations: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def restored(self, generation: int, step: int) -> None:
        """Generation `generation` began from `step`."""
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            self.generations.pop()
        self.steps.append(step)
        self.generations.append(generation)

    def contains(self, generation: int, step: int) -> bool:
        """True when training stands on what `generation` made at `step`."""
        if self.generations and generation >= self.generations[-1]:
            return True  # what bisection would find; nearly every fact is about the newest generation
        later = bisect_right(self.generations, generation)
        return later == len(self.steps) or step <= self.steps[later]
