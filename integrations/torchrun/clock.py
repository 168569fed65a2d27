"""The clocks an agent reads, as a value: the simulation gives its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """One process's clocks."""

    monotonic: Callable[[], float] = time.monotonic
    """Seconds; never goes back."""
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """UTC Unix milliseconds."""


SYSTEM = Clock()
