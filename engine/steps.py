"""Which step to restore, and from where.

A step is complete when every slot has a live source. Trust says which complete steps will do: `certified` for causes
that may have touched the state, `latest` for those that cannot have.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from lmr.engine.certification import certified
from lmr.engine.plan import Rejected, Source, Tier, Trust
from lmr.engine.snapshots import Copy, Snapshot
from lmr.engine.state import State

TrustRule = Literal["certified", "latest"]

_TIER_ORDER: dict[Tier, int] = {"memory": 0, "replica": 1, "disk": 2, "durable": 3}
_MOST_REJECTED = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a cause asks of the step."""

    trust: TrustRule
    below: int | None = None
    """The step must lie below this one: the first bad step."""
    verified_only: bool = False
    """True for corruption and divergence: no step will do that nobody checked."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The step to restore; no snapshot means step 0, from the script's own start."""

    step: int
    trust: Trust
    snapshot: Snapshot | None
    rejected: tuple[Rejected, ...]


@dataclass(slots=True)
class StepChooser:
    """Chooses among the steps of one state."""

    state: State
    certified_ids: set[int] = field(init=False)

    def __post_init__(self) -> None:
        """Certification is looked up once."""
        found = certified(self.state.copies, self.state.policy.certify_checks)
        self.certified_ids = {id(snapshot) for snapshot in found}

    def choose(self, wanted: Wanted) -> Choice | None:
        """The step to restore, None when nothing restorable is left."""
        below = first_bad(self.state, wanted.below)
        chosen = self._choose_snapshot(wanted, below)
        if chosen is not None:
            return Choice(chosen.step, self.label(chosen), chosen, self._passed_over(chosen.step, below, wanted))
        if self.state.trusted_step_existed or self.state.initial_failed_seq is not None:
            return None
        return Choice(0, "initial", None, self._passed_over(0, below, wanted))

    def why_nothing(self, wanted: Wanted) -> tuple[Rejected, ...]:
        """Why no step at all will do."""
        found = self._passed_over(-1, first_bad(self.state, wanted.below), wanted)
        failed = self.state.initial_failed_seq
        if failed is not None:
            return (*found, Rejected(option="step 0", reason="restore_failed", evidence=(failed,)))
        return (*found, Rejected(option="step 0", reason="trusted_step_existed", evidence=()))

    def label(self, snapshot: Snapshot) -> Trust:
        """What the step is, whichever rule chose it."""
        return "certified" if id(snapshot) in self.certified_ids else "uncertified"

    def complete(self, snapshot: Snapshot) -> bool:
        """True when every slot has a live source."""
        if snapshot.failed_all is not None:
            return False
        if snapshot.durable:
            return True
        slots = self.state.min_nodes
        return len(snapshot.copies) >= slots and all(self._good(snapshot, slot) for slot in range(slots))

    def sources(self, snapshot: Snapshot, nodes: tuple[str, ...], leaving: AbstractSet[str]) -> tuple[Source, ...]:
        """Where each slot reads its shard when `nodes[slot]` runs it and `leaving` are quarantined by the same plan."""
        return tuple(self._source(snapshot, slot, node, leaving) for slot, node in enumerate(nodes))

    def holds(self, snapshot: Snapshot | None, slot: int, node: str) -> bool:
        """True when `node` already has the slot's shard of the step."""
        return snapshot is not None and any(copy.holder == node for copy in self._good(snapshot, slot))

    def _choose_snapshot(self, wanted: Wanted, below: int | None) -> Snapshot | None:
        eligible = [snapshot for snapshot in self.state.copies.newest_first() if below is None or snapshot.step < below]
        if wanted.trust == "latest" or not self.state.detection:
            return self._newest_complete(eligible)
        return (
            self._newest_complete([snapshot for snapshot in eligible if id(snapshot) in self.certified_ids])
            or self._newest_complete([snapshot for snapshot in eligible if snapshot.durable])
            or (None if wanted.verified_only else self._newest_complete(eligible))
        )

    def _newest_complete(self, snapshots: list[Snapshot]) -> Snapshot | None:
        return next((snapshot for snapshot in snapshots if self.complete(snapshot)), None)

    def _good(self, snapshot: Snapshot, slot: int) -> list[Copy]:
        if slot in snapshot.conflicts or snapshot.failed_all is not None:
            return []
        return [
            copy
            for (holder, tier), copy in snapshot.copies.get(slot, {}).items()
            if (slot, holder, tier) not in snapshot.failed and copy_alive(self.state, copy)
        ]

    def _source(self, snapshot: Snapshot, slot: int, node: str, leaving: AbstractSet[str]) -> Source:
        ranked: list[tuple[tuple[int, int, int], str, Tier]] = [
            (self._rank(copy, node, leaving), copy.holder, copy.tier) for copy in self._good(snapshot, slot)
        ]
        if snapshot.durable and snapshot.durable_id is not None:
            # After every good copy, before those on quarantined nodes.
            ranked.append(((2, 0, 0), snapshot.durable_id, "durable"))
        _, holder, tier = min(ranked)
        return Source(slot=slot, holder=holder, tier=tier)

    def _rank(self, copy: Copy, node: str, leaving: AbstractSet[str]) -> tuple[int, int, int]:
        holder = self.state.nodes[copy.holder]
        own = 0 if copy.holder == node else 1
        last_resort = holder.quarantine is not None or copy.holder in leaving
        return 3 if last_resort else own, _TIER_ORDER[copy.tier], holder.joined_seq

    def _passed_over(self, chosen: int, below: int | None, wanted: Wanted) -> tuple[Rejected, ...]:
        """Why each newer step was not taken, and which copies of any step from `chosen` on failed."""
        found: list[Rejected] = []
        for snapshot in self.state.copies.newest_first():
            if snapshot.step < chosen or len(found) >= _MOST_REJECTED:
                break
            found.extend(_failed_copies(snapshot))
            if snapshot.step > chosen:
                reason, seqs = self._why_not(snapshot, below, wanted)
                found.append(Rejected(option=f"step {snapshot.step}", reason=reason, evidence=seqs))
        return tuple(found)

    def _why_not(self, snapshot: Snapshot, below: int | None, wanted: Wanted) -> tuple[str, tuple[int, ...]]:
        if below is not None and snapshot.step >= below:
            verdict = snapshot.corrupt_seq
            return "known_bad", (verdict,) if verdict is not None else (snapshot.last_seq,)
        if snapshot.failed_all is not None:
            return "restore_failed", (snapshot.failed_all.seq,)
        if not self.complete(snapshot):
            if snapshot.conflicts:
                return "digests_differ", tuple(sorted(set(snapshot.conflicts.values())))
            return "incomplete", (snapshot.last_seq,)
        if wanted.trust == "certified" and id(snapshot) not in self.certified_ids:
            unclean = snapshot.unclean_seq
            return "not_certified", (unclean,) if unclean is not None else (snapshot.last_seq,)
        return "older_source_preferred", (snapshot.last_seq,)


def first_bad(state: State, below: int | None) -> int | None:
    """The step restores must lie below: the lineage's first corrupt verdict, or `below` when that is lower."""
    bad = list(state.corrupt)
    if below is not None:
        bad.append(below)
    return min(bad, default=None)


def copy_alive(state: State, copy: Copy) -> bool:
    """True when the life of the holder that has the copy still runs."""
    holder = state.nodes.get(copy.holder)
    if holder is None or not holder.live:
        return False
    if copy.incarnation is None:  # announced before its holder was admitted again
        return copy.reopened == state.reopened
    return copy.incarnation == holder.incarnation


def _failed_copies(snapshot: Snapshot) -> list[Rejected]:
    found = [
        Rejected(
            option=f"step {snapshot.step} slot {slot} {tier} on {holder}", reason=failed.why, evidence=(failed.seq,)
        )
        for (slot, holder, tier), failed in sorted(snapshot.failed.items(), key=lambda item: item[0])
    ]
    if snapshot.durable_failed is not None:
        failed = snapshot.durable_failed
        found.append(Rejected(option=f"step {snapshot.step} durable", reason=failed.why, evidence=(failed.seq,)))
    return found
