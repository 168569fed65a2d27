"""What the torchrun thread needs to know of the run, as one consistent value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmr.engine.plan import Assignment
from lmr.integrations.torchrun.orders import Orders


@dataclass(frozen=True)
class End:
    """It is over for this agent."""

    reason: str
    exit_code: int
    outcome: str | None = None
    """How the run was closed; None when only this agent ends."""

    @property
    def succeeded(self) -> bool:
        """Whether the run is over because its work is done."""
        return self.outcome is not None and self.outcome.startswith("succeeded")

    @property
    def run_closed(self) -> bool:
        """Whether the run is over for everybody."""
        return self.outcome is not None


@dataclass(frozen=True)
class Current:
    """The latest word of the decider, and what this node made of it."""

    orders: Orders | None = None
    mine: Assignment | None = None
    """This node's slot; None when it has none, or when this life of it was given up."""
    go: dict[str, Any] | None = None
    end: End | None = None
    displaced: bool = False
    """This node's workers must stop: it was replaced, fenced or declared lost."""

    @property
    def generation(self) -> int:
        """The generation the latest plan orders; -1 before the first."""
        return self.orders.generation if self.orders is not None else -1

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks of this node in the present generation."""
        return self.orders.ranks if self.orders is not None else ()
