"""What a check of `lmr doctor` found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, whether it is fine, and the cure when not."""

    what: str
    fine: bool
    detail: str
    cure: str = ""
