"""Small values the log hands out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Head:
    """Where a run's log ends: the last `seq` (0 before the first record) and its hash, which covers everything."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write a run's decisions, by the database's clock."""

    epoch: int
    holder: str
    address: str
    expires_at_ms: int
