"""Writing records that were sealed elsewhere: a bundle's, an archive's, or those of facts decided offline."""

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, update

from lmr.engine.record import Record, record_hash
from lmr.store.dialect import Dialect
from lmr.store.errors import HeadMoved, LogCorrupt
from lmr.store.head import Head
from lmr.store.schema import runs
from lmr.store.writing import lock_run, row_of

_INSERT_ROWS = 1_000


def restore_records(
    database: Dialect, connection: Connection, run_id: str, base: Head, records: Iterable[Record]
) -> Head:
    """Insert the records behind `base` and move the head of a run that is still empty.

    Raises:
        HeadMoved: the run has records already.
        LogCorrupt: a record does not follow the one before it.
    """
    row = lock_run(database, connection, run_id)
    if row.head_seq != 0:
        raise HeadMoved(run_id, 0, row.head_seq)
    walk = _Walk(run_id, base)
    rows: list[tuple[Any, ...]] = []
    for record in walk.follow(records):
        rows.append(row_of(record))
        if len(rows) == _INSERT_ROWS:
            database.insert_events(connection, rows)
            rows = []
    if rows:
        database.insert_events(connection, rows)
    connection.execute(
        update(runs)
        .where(runs.c.run_id == run_id)
        .values(head_seq=walk.head.seq, head_hash=walk.head.hash, recorded_at_ms=walk.recorded_at_ms, epoch=walk.epoch)
    )
    return walk.head


class _Walk:
    def __init__(self, run_id: str, base: Head) -> None:
        self.head = base
        self.recorded_at_ms = 0
        self.epoch = 0
        self._run_id = run_id

    def follow(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            seq = self.head.seq + 1
            if record.seq != seq or record.run_id != self._run_id:
                raise LogCorrupt(seq, f"the record is missing; found {record.seq} of run {record.run_id}")
            if record.prev_hash != self.head.hash or record.hash != record_hash(record.prev_hash, record.body):
                raise LogCorrupt(seq, "does not chain to the record before it")
            if record.recorded_at_ms < self.recorded_at_ms or record.epoch < self.epoch:
                raise LogCorrupt(seq, "recorded time or epoch goes back")
            self.head = Head(seq, record.hash)
            self.recorded_at_ms, self.epoch = record.recorded_at_ms, record.epoch
            yield record
