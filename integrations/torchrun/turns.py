"""What an agent's main loop does next, given the latest word: the part of the handler that needs no torchrun."""

from __future__ import annotations

from typing import Literal

from lmr.integrations.torchrun.current import Current


def parked(now: Current, generation: int, arrived: int) -> Literal["end", "arrive", "begin", "wait"]:
    """The next thing to do between two generations.

    Args:
        now: the latest word.
        generation: whose workers ran here last; -1 before the first.
        arrived: the newest generation this node said it is ready for.
    """
    if now.end is not None:
        return "end"
    if now.mine is None or now.generation <= generation:
        return "wait"
    if arrived < now.generation:
        return "arrive"
    if now.go is not None and now.go["generation"] == now.generation:
        return "begin"
    return "wait"


def working(now: Current, generation: int) -> Literal["end", "stop", "go on"]:
    """The next thing to do while the generation's workers run; after success they end by themselves."""
    if now.end is not None and not (now.end.run_closed and now.end.exit_code == 0):
        return "end"
    if now.displaced or now.generation > generation:
        return "stop"
    return "go on"
