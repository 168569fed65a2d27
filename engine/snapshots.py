"""Where the shards of every step are, and what was said about them.

A snapshot is one step as one generation captured it: a later generation's recapture is another snapshot, so what was
said about the old copies does not stick to the new ones, and shards of two generations never mix.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lmr.engine.plan import Tier

KEEP_STEPS = 64
"""Steps kept beyond the trusted ones: the ladder a restore may climb down. Older ones are forgotten."""
KEEP_TRUSTED = 8
"""Certified steps, and durable steps, kept however old they are."""


class Copy(NamedTuple):
    """One shard in one place. `incarnation` is the life of the holder that has it, None until that life joins."""

    slot: int
    holder: str
    incarnation: str | None
    tier: Tier
    seq: int
    reopened: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a copy may not be used again."""

    seq: int
    why: str


@dataclass(slots=True)
class Snapshot:
    """One step as captured by one generation."""

    step: int
    generation: int
    copies: dict[int, dict[tuple[str, Tier], Copy]] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    conflicts: dict[int, int] = field(default_factory=dict)
    """Slots whose copies have differing digests -> seq of the fact that showed it."""
    failed: dict[tuple[int, str, str], Failed] = field(default_factory=dict)
    """(slot, holder, tier) of copies that could not be restored."""
    dropped: set[tuple[int, str, str]] = field(default_factory=set)
    durable_id: str | None = None
    durable_failed: Failed | None = None
    failed_all: Failed | None = None
    was_complete: bool = False
    clean_seq: int | None = None
    unclean_seq: int | None = None
    """A check that was inconclusive."""
    corrupt_seq: int | None = None
    certified_for_good: bool = False
    """Certified when the checks that said so were forgotten."""
    last_seq: int = 0

    @property
    def checked(self) -> bool:
        """True when any check ran on it."""
        return not (self.clean_seq is None and self.unclean_seq is None and self.corrupt_seq is None)

    @property
    def clean(self) -> bool:
        """True when a check ran and all were clean."""
        return self.clean_seq is not None and self.unclean_seq is None and self.corrupt_seq is None

    @property
    def durable(self) -> bool:
        """True when the framework's own checkpoint of the step can be read."""
        return self.durable_id is not None and self.durable_failed is None and self.failed_all is None


@dataclass(slots=True)
class Snapshots:
    """All snapshots of the lineage, by step."""

    by_step: dict[int, list[Snapshot]] = field(default_factory=dict)
    count: int = 0

    def at(self, step: int, generation: int) -> Snapshot:
        """The snapshot a copy of `generation` belongs to; made when there is none."""
        for snapshot in self.by_step.get(step, ()):
            if snapshot.generation == generation:
                return snapshot
        made = Snapshot(step, generation)
        siblings = self.by_step.setdefault(step, [])
        siblings.append(made)
        siblings.sort(key=lambda snapshot: snapshot.generation)
        self.count += 1
        return made

    def seen_by(self, step: int, generation: int) -> Snapshot | None:
        """The snapshot that generation `generation` means by `step`: the newest not younger than itself."""
        found = None
        for snapshot in self.by_step.get(step, ()):
            if snapshot.generation <= generation:
                found = snapshot
        return found

    def newest_first(self) -> Iterator[Snapshot]:
        """All snapshots, newest step first, newest capture of a step first."""
        for step in sorted(self.by_step, reverse=True):
            yield from reversed(self.by_step[step])

    def discard_above(self, step: int) -> None:
        """A plan restores `step`: everything above it is history."""
        for above in [known for known in self.by_step if known > step]:
            self.count -= len(self.by_step.pop(above))

    def forget(self, snapshot: Snapshot) -> None:
        """Drops one snapshot."""
        siblings = self.by_step[snapshot.step]
        siblings.remove(snapshot)
        self.count -= 1
        if not siblings:
            del self.by_step[snapshot.step]
