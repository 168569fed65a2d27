"""Folds what is known about steps: where their shards are, what checks said, what could not be restored."""

from typing import cast

from lmr.engine.certification import certified, prune
from lmr.engine.events import (
    CheckpointCaptured,
    CheckpointDropped,
    CheckpointFlushed,
    CheckpointPersisted,
    CheckpointReplicated,
    ReplayChecked,
    RestoreFailed,
    StateDiverged,
)
from lmr.engine.incident import take
from lmr.engine.plan import Tier
from lmr.engine.snapshots import KEEP_STEPS, KEEP_TRUSTED, Copy, Failed, Snapshot
from lmr.engine.state import Fact, State
from lmr.engine.steps import copy_alive

RESTORE_WHYS = frozenset({"digest_mismatch", "missing", "topology_mismatch", "nonfinite", "timeout"})
"""Known reasons of a failed restore; any other is recorded as `restore_failed`."""


def copied(
    state: State, seq: int, data: CheckpointCaptured | CheckpointReplicated | CheckpointFlushed, holder: str, tier: Tier
) -> None:
    """A live holder has a copy of a step of the lineage."""
    slot, generation, step = data.slot, data.generation, data.step
    if slot >= state.min_nodes:
        return
    # Training always stands on what its newest generation makes; only of others need that be asked.
    if generation != state.last_generation and not _belongs(state, generation, step):
        return
    node = state.nodes.get(holder)
    live = node is not None and node.live
    if not live and not (state.generation is None and state.reopened > 0):
        return
    if tier == "memory" and not state.reopened and _of_an_earlier_life(state, generation, slot, holder):
        return
    captures = state.copies.by_step.get(step)
    newest = captures[-1] if captures else None
    snapshot = newest if newest is not None and newest.generation == generation else _snapshot(state, step, generation)
    if snapshot.dropped and (slot, holder, tier) in snapshot.dropped:
        return
    copies = snapshot.copies.get(slot)
    if copies is None:
        copies = snapshot.copies[slot] = {}
    known = copies.get((holder, tier))
    if known is None or known.reopened != state.reopened:
        incarnation = node.incarnation if node is not None and live else None
        copies[holder, tier] = Copy(slot, holder, incarnation, tier, seq, state.reopened)
        snapshot.last_seq = seq
    digest = data.digest
    if snapshot.digests.setdefault(slot, digest) != digest:
        snapshot.conflicts.setdefault(slot, seq)
    if not snapshot.was_complete and len(snapshot.copies) >= state.min_nodes:
        _note_complete(state, snapshot)


def persisted(state: State, seq: int, data: CheckpointPersisted) -> None:
    """The framework's own durable checkpoint is complete for all slots."""
    state.trusted_step_existed = True
    if not _belongs(state, data.generation, data.step):
        return
    snapshot = _snapshot(state, data.step, data.generation)
    if snapshot.durable_id is None:
        snapshot.durable_id = data.checkpoint_id
        snapshot.last_seq = seq
    snapshot.was_complete = True


def dropped(state: State, data: CheckpointDropped) -> None:
    """The copy is gone, and a late word of its making does not bring it back."""
    for snapshot in state.copies.by_step.get(data.step, ()):
        if snapshot.generation == data.generation:
            snapshot.dropped.add((data.slot, data.holder, data.tier))
            snapshot.copies.get(data.slot, {}).pop((data.holder, cast("Tier", data.tier)), None)


def checked(state: State, seq: int, data: ReplayChecked | StateDiverged, *, in_lineage: bool) -> None:
    """A verdict on a step of the lineage."""
    if not in_lineage:
        return
    snapshot = state.copies.seen_by(data.step, data.generation) or _snapshot(state, data.step, data.generation)
    verdict = "corrupt" if isinstance(data, StateDiverged) else data.verdict
    if verdict == "clean":
        snapshot.clean_seq = snapshot.clean_seq or seq
        _note_trusted(state)
    elif verdict == "inconclusive":
        snapshot.unclean_seq = snapshot.unclean_seq or seq
    else:
        snapshot.corrupt_seq = snapshot.corrupt_seq or seq
        state.corrupt.setdefault(data.step, seq)
    snapshot.last_seq = seq


def restore_failed(state: State, seq: int, data: RestoreFailed) -> None:
    """The copy is bad, late or not; while the restore is still awaited, it is planned anew."""
    why = data.why if data.why in RESTORE_WHYS else "restore_failed"
    snapshot = state.copies.seen_by(data.step, data.generation - 1)
    if snapshot is not None:
        _mark_failed(state, snapshot, seq, why, data)
    generation = state.generation
    if generation is None or generation.number != data.generation or generation.resumed_ms is not None:
        return
    if generation.began_step == data.step and state.hold is None:
        if data.step == 0 and snapshot is None:
            state.initial_failed_seq = seq
        take(state, Fact(seq, state.now_ms, "restore", (data.node,), step=data.step, word=why))


def restore_overdue(state: State, seq: int) -> None:
    """The restore deadline passed: the silent nodes' sources failed; when none is silent, the step did."""
    generation = state.generation
    if generation is None:
        return
    step = generation.began_step
    silent = [a.slot for a in generation.slots if a.node not in generation.restored]
    planned = generation.plan.checkpoint
    snapshot = state.copies.seen_by(step, generation.number - 1)
    if snapshot is None or planned is None:
        state.initial_failed_seq = seq
    elif silent:
        for source in planned.sources:
            if source.slot in silent:
                _mark_source(snapshot, source.slot, source.holder, source.tier, Failed(seq, "timeout"))
    else:
        snapshot.failed_all = Failed(seq, "timeout")
    nodes = tuple(sorted(generation.slots[slot].node for slot in silent))
    take(state, Fact(seq, state.now_ms, "restore", nodes, step=step, word="timeout"))


def _mark_failed(state: State, snapshot: Snapshot, seq: int, why: str, data: RestoreFailed) -> None:
    failed = Failed(seq, why)
    tiers = [tier for holder, tier in snapshot.copies.get(data.slot, {}) if holder == data.holder]
    if data.tier == "durable":
        _mark_source(snapshot, data.slot, data.holder, "durable", failed)
    elif data.tier in tiers or not tiers:
        _mark_source(snapshot, data.slot, data.holder, data.tier, failed)
    else:
        for tier in tiers:
            _mark_source(snapshot, data.slot, data.holder, tier, failed)
    generation = state.generation
    named = data.tier == "durable" or bool(tiers)
    if named or generation is None or generation.number != data.generation or generation.plan.checkpoint is None:
        return
    # The fact names a copy nobody knows: what failed is then the source the plan gave the slot.
    for source in generation.plan.checkpoint.sources:
        if source.slot == data.slot and generation.began_step == data.step:
            _mark_source(snapshot, source.slot, source.holder, source.tier, failed)


def _mark_source(snapshot: Snapshot, slot: int, holder: str, tier: str, failed: Failed) -> None:
    if tier == "durable":
        snapshot.durable_failed = snapshot.durable_failed or failed
    else:
        snapshot.failed.setdefault((slot, holder, tier), failed)


def _belongs(state: State, generation: int, step: int) -> bool:
    return generation <= state.last_generation and state.lineage.contains(generation, step)


def _of_an_earlier_life(state: State, generation: int, slot: int, holder: str) -> bool:
    """True for a late word from a life of the holder that has ended."""
    slots = state.layouts.get(generation)
    if slots is None or slot >= len(slots):
        return False
    given = slots[slot]
    return given.node == holder and given.incarnation != state.nodes[holder].incarnation


def _snapshot(state: State, step: int, generation: int) -> Snapshot:
    for snapshot in state.copies.by_step.get(step, ()):
        if snapshot.generation == generation:
            return snapshot
    snapshot = state.copies.at(step, generation)
    if state.copies.count > 2 * KEEP_STEPS:
        prune(state.copies, state.policy.certify_checks, keep=KEEP_STEPS, keep_trusted=KEEP_TRUSTED)
        return state.copies.at(step, generation)
    return snapshot


def _note_complete(state: State, snapshot: Snapshot) -> None:
    if all(any(copy_alive(state, copy) for copy in copies.values()) for copies in snapshot.copies.values()):
        snapshot.was_complete = True
        if state.detection:
            _note_trusted(state)
        else:
            state.trusted_step_existed = True


def _note_trusted(state: State) -> None:
    if not state.trusted_step_existed:
        state.trusted_step_existed = bool(certified(state.copies, state.policy.certify_checks))
