"""Snapshots and seals: what lets a reader begin late, and old records leave from the front.

A snapshot is a folded state at some seq; whoever folds gives its bytes. A seal closes everything up to a snapshot: its
root hash covers the chain's hash there, the state's digest and the seal before it. Sealed records may then be archived:
exported to a bundle that was verified, and removed. Their ids stay, so that a late retry is still recognised.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam, delete, insert, select, update

from lmr.engine.record import Record, open_record
from lmr.store.errors import LogCorrupt, StoreError
from lmr.store.log import EventLog
from lmr.store.reading import page_after
from lmr.store.schema import archived_ids, events, runs, seals, snapshots
from lmr.store.writing import payload_digest

_ARCHIVE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A folded state: that of every record up to `seq`, whose hash is `hash`."""

    run_id: str
    seq: int
    hash: str
    engine: str
    state_digest: str
    state: bytes
    taken_at_ms: int


@dataclass(frozen=True, slots=True)
class Seal:
    """A closed segment: every record up to `through_seq`."""

    run_id: str
    through_seq: int
    hash: str
    state_digest: str
    root_hash: str
    sealed_at_ms: int


class NotSealable(StoreError):
    """There is no snapshot to seal with, or no seal to archive by."""


def root_hash(run_id: str, through_seq: int, hash_: str, state_digest: str, previous_root: str) -> str:
    """Hex SHA-256 of what a seal vouches for: chain, state, and the seals before it."""
    text = f"lmr-seal-1\0{run_id}\0{through_seq}\0{hash_}\0{state_digest}\0{previous_root}"
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def state_digest(state: bytes) -> str:
    """Hex SHA-256(`lmr-state-1\\0`, state)."""
    return hashlib.sha256(b"lmr-state-1\0" + state).hexdigest()


def save_snapshot(log: EventLog, run_id: str, seq: int, state: bytes, *, engine: str) -> Snapshot:
    """Keep the folded state at `seq`. Saving the same again changes nothing.

    Raises:
        LogCorrupt: there is no record `seq`, or another state was saved there.
    """
    with log.database.write() as connection:
        hash_ = connection.scalar(select(events.c.hash).where(events.c.run_id == run_id, events.c.seq == seq))
        if hash_ is None:
            raise LogCorrupt(seq, "the record is missing")
        now = connection.execute(select(log.database.clock_ms)).scalar_one()
        found = connection.execute(_at(run_id, seq)).first()
        digest = state_digest(state)
        if found is not None:
            if found.state_digest != digest:
                raise LogCorrupt(seq, "another state was saved here: the fold is not deterministic")
            return _snapshot(found)
        snapshot = Snapshot(run_id, seq, hash_, engine, digest, state, now)
        connection.execute(insert(snapshots).values(**{name: getattr(snapshot, name) for name in Snapshot.__slots__}))
    return snapshot


def newest_snapshot(log: EventLog, run_id: str, at_most: int | None = None) -> Snapshot | None:
    """The newest snapshot, of those at or before `at_most`.

    Raises:
        LogCorrupt: its bytes are not those its digest names.
    """
    query = select(snapshots).where(snapshots.c.run_id == run_id).order_by(snapshots.c.seq.desc()).limit(1)
    if at_most is not None:
        query = query.where(snapshots.c.seq <= at_most)
    with log.database.read() as connection:
        row = connection.execute(query).first()
    if row is None:
        return None
    snapshot = _snapshot(row)
    if state_digest(snapshot.state) != snapshot.state_digest:
        raise LogCorrupt(snapshot.seq, "the snapshot's bytes are not those its digest names")
    return snapshot


def check_snapshot(log: EventLog, snapshot: Snapshot, fold: Callable[[Iterator[Record]], bytes]) -> None:
    """Compare the snapshot with a full replay: `fold` makes the state's bytes from all records up to it.

    Raises:
        LogCorrupt: the replay gives another state.
    """
    replayed = fold(log.read(snapshot.run_id, 0, snapshot.seq))
    if state_digest(replayed) != snapshot.state_digest:
        raise LogCorrupt(snapshot.seq, "a full replay gives another state than the snapshot")


def seal_segment(log: EventLog, run_id: str, through_seq: int) -> Seal:
    """Close everything up to `through_seq`, where a snapshot was saved. Sealing the same again changes nothing.

    Raises:
        NotSealable: there is no snapshot at `through_seq`, or a later segment is sealed already.
    """
    with log.database.write() as connection:
        connection.execute(log.database.lock_query, {"run": run_id})  # one sealer at a time
        sealed = connection.execute(select(seals).where(seals.c.run_id == run_id).order_by(seals.c.through_seq)).all()
        for row in sealed:
            if row.through_seq == through_seq:
                return Seal(*row)
        if sealed and sealed[-1].through_seq > through_seq:
            raise NotSealable(f"run {run_id}: already sealed through {sealed[-1].through_seq}")
        snapshot = connection.execute(_at(run_id, through_seq)).first()
        if snapshot is None:
            raise NotSealable(f"run {run_id}: no snapshot at {through_seq} to seal with")
        root = root_hash(
            run_id, through_seq, snapshot.hash, snapshot.state_digest, sealed[-1].root_hash if sealed else ""
        )
        now = connection.execute(select(log.database.clock_ms)).scalar_one()
        seal = Seal(run_id, through_seq, snapshot.hash, snapshot.state_digest, root, now)
        connection.execute(insert(seals).values(**{name: getattr(seal, name) for name in Seal.__slots__}))
    return seal


def archive_segment(log: EventLog, run_id: str, through_seq: int, bundle: Path) -> None:
    """Write the sealed records up to `through_seq` to a bundle, verify it, then remove them from the log.

    On PostgreSQL this needs a role that may delete: the log's owner.

    Raises:
        NotSealable: there is no seal at `through_seq`.
        LogCorrupt: the segment does not verify; nothing was removed.
    """
    from lmr.store.bundle import export_bundle, read_bundle  # a bundle carries seals: the modules need each other

    with log.database.read() as connection:
        seal = connection.execute(
            select(seals).where(seals.c.run_id == run_id, seals.c.through_seq == through_seq)
        ).first()
    if seal is None:
        raise NotSealable(f"run {run_id}: no seal at {through_seq}; seal the segment before it is archived")
    export_bundle(log, run_id, bundle, through_seq=through_seq)
    if read_bundle(bundle).head.hash != seal.hash:
        raise LogCorrupt(through_seq, "the archive does not end with the sealed record")
    with log.database.write() as connection:
        row = connection.execute(log.database.lock_query, {"run": run_id}).one()
        _keep_ids(connection, run_id, row.archived_seq, through_seq)
        connection.execute(update(runs).where(runs.c.run_id == run_id).values(archived_seq=through_seq))
        connection.execute(delete(events).where(events.c.run_id == run_id, events.c.seq <= through_seq))


def _keep_ids(connection: Any, run_id: str, after: int, through_seq: int) -> None:
    while after < through_seq:
        page = page_after(connection, run_id, after, min(_ARCHIVE_ROWS, through_seq - after))
        if not page:
            raise LogCorrupt(after + 1, "the record is missing")
        records = [open_record(bytes(row.body), row.prev_hash, row.hash) for row in page]
        connection.execute(
            insert(archived_ids),
            [
                {
                    "run_id": run_id,
                    "event_id": record.event_id,
                    "seq": record.seq,
                    "payload_digest": payload_digest(record.event),
                }
                for record in records
            ],
        )
        after = records[-1].seq


def _at(run_id: str, seq: int) -> Any:
    return select(snapshots).where(snapshots.c.run_id == bindparam("r", run_id), snapshots.c.seq == bindparam("s", seq))


def _snapshot(row: Any) -> Snapshot:
    values = row._asdict()
    state = values["state"]  # SQLite lets a forger put text here; its digest is then wrong, too
    values["state"] = state.encode() if isinstance(state, str) else bytes(state)
    return Snapshot(**values)
