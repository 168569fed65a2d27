"""Taking a segment out of a log and going on without it: the engine's own state stands for what has left.

A snapshot here is the folded state in canonical bytes (`lmr.engine.state_bytes`). Its digest is in the seal, and the
seal's root hash covers the chain there, so what goes on from it rests on the same hashes as the records did.
"""

from pathlib import Path

from sqlalchemy import select

from lmr.engine.record import record_hash
from lmr.engine.reduce import apply
from lmr.engine.state import State
from lmr.engine.state_bytes import state_bytes, state_of
from lmr.engine.version import ENGINE_VERSION
from lmr.store.errors import LogCorrupt
from lmr.store.log import EventLog
from lmr.store.schema import seals
from lmr.store.sealing import (
    NotSealable,
    Seal,
    Snapshot,
    archive_segment,
    newest_snapshot,
    save_snapshot,
    seal_segment,
)
from lmr.store.verify import check_seals


def sealed_start(log: EventLog, run_id: str) -> Snapshot | None:
    """The snapshot that the run's records begin behind; None when nothing has been archived.

    Raises:
        LogCorrupt: the seals do not hold, or the snapshot is not the one that was sealed.
    """
    found = check_seals(log, run_id)
    if found.fault is not None:
        raise LogCorrupt(found.fault.seq, found.fault.what)
    if not found.archived_seq:
        return None
    snapshot = newest_snapshot(log, run_id, at_most=found.archived_seq)
    with log.database.read() as connection:
        seal = connection.execute(
            select(seals).where(seals.c.run_id == run_id, seals.c.through_seq == found.archived_seq)
        ).one()
    if snapshot is None or snapshot.seq != found.archived_seq:
        raise LogCorrupt(found.archived_seq, "the snapshot that stands for the archived records is missing")
    if (snapshot.hash, snapshot.state_digest) != (seal.hash, seal.state_digest):
        raise LogCorrupt(found.archived_seq, "the snapshot is not the one that was sealed")
    return snapshot


def starting_state(log: EventLog, run_id: str) -> State:
    """The state the run's stored records go on from: that of the archive's end, or an empty one.

    Raises:
        LogCorrupt: see `sealed_start`.
        StateUnreadable: the state was sealed by a version that lays it out otherwise.
    """
    snapshot = sealed_start(log, run_id)
    return State() if snapshot is None else state_of(snapshot.state)


def archive_through(log: EventLog, run_id: str, through_seq: int, bundle: Path) -> Seal:
    """Fold the run up to `through_seq`, keep the state, seal the segment, and move its records to the bundle.

    Raises:
        NotSealable: the run has no such record, or a later segment is sealed already.
        LogCorrupt: a record is not what its hash says; nothing was removed.
        StateUnreadable: see `starting_state`.
    """
    state = starting_state(log, run_id)
    if not state.seq < through_seq <= log.head(run_id).seq:
        raise NotSealable(
            f"run {run_id}: can be archived through {state.seq + 1} to {log.head(run_id).seq}, not {through_seq}"
        )
    for record in log.read(run_id, state.seq, through_seq - state.seq):
        if record_hash(record.prev_hash, record.body) != record.hash:
            raise LogCorrupt(record.seq, "the hash is not that of the stored bytes")
        apply(state, record)
    save_snapshot(log, run_id, through_seq, state_bytes(state), engine=ENGINE_VERSION)
    seal = seal_segment(log, run_id, through_seq)
    archive_segment(log, run_id, through_seq, bundle)
    return seal
