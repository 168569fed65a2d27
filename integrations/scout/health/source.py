"""What a health source is.

A source looks at one kind of device and says what is wrong with it now. It never raises for what this machine does not
have: it is then not available, and not asked again. It keeps what it must remember between two looks, such as the
value of a counter when it was first seen; what was wrong before the run began is not news.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

__all__ = ["Finding", "Source"]

Severity = Literal["fatal", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. Equal findings are one piece of news."""

    device: str
    metric: str
    severity: Severity
    detail: str = ""
    """For the operator's log; not part of the fact."""

    @property
    def key(self) -> tuple[str, str, Severity]:
        """What makes it new."""
        return (self.device, self.metric, self.severity)


class Source(ABC):
    """One kind of device."""

    name: ClassVar[str]
    """What the policy calls it."""

    @abstractmethod
    def start(self) -> bool:
        """Remember how things are now; whether this machine has such a device at all. Called once, first."""

    @abstractmethod
    def look(self) -> list[Finding]:
        """What is wrong now, or has happened since the last look. Takes milliseconds."""

    def close(self) -> None:  # noqa: B027  most sources hold nothing
        """Give back what is held."""
