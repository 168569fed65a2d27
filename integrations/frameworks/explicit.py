"""What a script may say itself, where its loop cannot be seen: `lmr.track` and `lmr.boundary`.

A loop that takes its data from a `DataLoader` needs neither. One that does not says what else belongs to its state, and
where it is between two steps.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from lmr.integrations.frameworks.adapter import guarded, session

__all__ = ["boundary", "track"]


class Stateful(Protocol):
    """What can be tracked: an iterator of one's own, counters, a NumPy generator in a small wrapper."""

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain values, NumPy arrays and tensors."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Become what `state_dict` described."""


_calls = 0


def track(name: str, thing: Stateful) -> None:
    """Have `thing` captured with every step and given its state back after a restart.

    Args:
        name: the same in every life of the script, and unique in it.
        thing: kept alive from here on.

    Raises:
        TypeError: it has no `state_dict` or no `load_state_dict`.
        ValueError: something else is tracked by this name.
    """
    for method in ("state_dict", "load_state_dict"):
        if not callable(getattr(thing, method, None)):
            raise TypeError(f"lmr.track({name!r}): a {type(thing).__name__} has no {method}()")
    found = session()
    if found is None:
        return
    if found.objects.tracked.setdefault(name, thing) is not thing:
        raise ValueError(f"lmr.track({name!r}): another object is tracked by this name")


def boundary() -> int:
    """Say that the script is between two steps: where all state is consistent, before anything is drawn for the next.

    The first call after a restart gives the captured state back; later ones capture. Once it has been called, nothing
    else is taken for a boundary.

    Returns:
        Optimizer steps completed; without LM Resiliency, the number of earlier calls.
    """
    global _calls
    found = session()
    if found is None:
        _calls += 1
        return int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0")) + _calls - 1
    guarded(found, "boundary", found.at_script_boundary)
    return found.steps.completed
