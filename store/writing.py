"""One write transaction on one run: the head row is locked, the epoch checked, and records are added behind it.

Rows are collected and inserted together before the commit or a read; the head moves in one statement, which names the
epoch and the writer it still expects. Whatever goes wrong, nothing of the transaction is there afterwards.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, bindparam, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from lmr.engine.events import Event
from lmr.engine.record import Record, genesis_hash, open_record, payload_bytes, seal
from lmr.store.dialect import Dialect
from lmr.store.errors import EpochFenced, EventRefused, HeadMoved, IdConflict
from lmr.store.head import Head
from lmr.store.reading import records_after
from lmr.store.schema import archived_ids, runs

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""Largest canonical body. A plan over 2,000 nodes is about half a megabyte."""

_INSERT_ROWS = 2_000

_move_head = (
    update(runs)
    .where(
        runs.c.run_id == bindparam("run"),
        runs.c.head_seq == bindparam("old_seq"),
        runs.c.epoch == bindparam("own_epoch"),
        or_(runs.c.lease_holder.is_(None), runs.c.lease_holder == bindparam("writer")),
    )
    .values(head_seq=bindparam("new_seq"), head_hash=bindparam("new_hash"), recorded_at_ms=bindparam("now"))
)
_archived = select(archived_ids.c.event_id, archived_ids.c.seq, archived_ids.c.payload_digest).where(
    archived_ids.c.run_id == bindparam("run"), archived_ids.c.event_id.in_(bindparam("events", expanding=True))
)


class Writing:
    """The transaction of `EventLog.writing`.

    Attributes:
        run_id: the run.
        head: where the log ends, records of this transaction included.
        now_ms: the database's clock at the start, never below the last record's; `recorded_at_ms` of every record here.
    """

    def __init__(self, dialect: Dialect, connection: Connection, run_id: str, *, epoch: int, writer: str) -> None:
        self.run_id = run_id
        self._dialect = dialect
        self._connection = connection
        self._epoch = epoch
        self._writer = writer
        row = lock_run(dialect, connection, run_id)
        fence(row, epoch, writer)
        self.head = Head(row.head_seq, row.head_hash)
        self.now_ms: int = max(row.clock_ms, row.recorded_at_ms)
        self._stored_seq: int = row.head_seq
        self._archived_seq: int = row.archived_seq
        self._pending: list[Record] = []
        self._own: dict[str, Record] = {}
        self._looked_up: dict[str, tuple[int, bytes] | None] = {}  # event id -> seq, payload digest

    def look_up(self, event_ids: Iterable[str]) -> None:
        """Ask once which of these ids the log has; `append` then need not ask for each."""
        wanted = [event_id for event_id in event_ids if event_id not in self._looked_up]
        if not wanted:
            return
        if not all(wanted) or "\0" in "".join(wanted):
            for event_id in wanted:
                refuse_text(event_id, event_id)
        self._looked_up.update(dict.fromkeys(wanted))
        for event_id, seq, body in self._dialect.known_ids(self._connection, self.run_id, wanted):
            # The hashes play no part in what the event says.
            self._looked_up[event_id] = (seq, payload_digest(open_record(bytes(body), "", "").event))
        if self._archived_seq:
            for event_id, seq, digest in self._connection.execute(_archived, {"run": self.run_id, "events": wanted}):
                self._looked_up[event_id] = (seq, bytes(digest))

    def append(self, event: Event, event_id: str) -> Record | None:
        """Put the event behind the head.

        Returns:
            Its record, or None when the same event is already there under this id.

        Raises:
            IdConflict: the id names an event that says something else.
            EventRefused: the event is too large, or holds what a database cannot.
        """
        if self._known(event, event_id):
            return None
        record = seal(
            event,
            run_id=self.run_id,
            seq=self.head.seq + 1,
            event_id=event_id,
            recorded_at_ms=self.now_ms,
            epoch=self._epoch,
            prev_hash=self.head.hash,
        )
        _refuse_unstorable(record)
        self._pending.append(record)
        self._own[event_id] = record
        self.head = Head(record.seq, record.hash)
        return record

    def read(self, after: int = 0, limit: int | None = None) -> Iterator[Record]:
        """Records behind `after`, those of this transaction included."""
        self.flush()
        return records_after(self._connection, self.run_id, after, limit)

    def flush(self) -> None:
        """Write the collected rows and move the head.

        Raises:
            EpochFenced: the run was taken over.
            HeadMoved: somebody moved the head without its lock.
        """
        if not self._pending:
            return
        rows = [row_of(record) for record in self._pending]
        for start in range(0, len(rows), _INSERT_ROWS):
            self._dialect.insert_events(self._connection, rows[start : start + _INSERT_ROWS])
        moved = self._connection.execute(
            _move_head,
            {
                "run": self.run_id,
                "old_seq": self._stored_seq,
                "own_epoch": self._epoch,
                "writer": self._writer,
                "new_seq": self.head.seq,
                "new_hash": self.head.hash,
                "now": self.now_ms,
            },
        )
        if moved.rowcount != 1:
            row = lock_run(self._dialect, self._connection, self.run_id)
            fence(row, self._epoch, self._writer)
            raise HeadMoved(self.run_id, self._stored_seq, row.head_seq)
        self._dialect.hint(self._connection)
        self._stored_seq = self.head.seq
        self._pending.clear()

    def _known(self, event: Event, event_id: str) -> bool:
        own = self._own.get(event_id)
        if own is not None:
            if payload_bytes(own.event) != payload_bytes(event):
                raise IdConflict(event_id, own.seq)
            return True
        if event_id not in self._looked_up:
            self.look_up((event_id,))
        found = self._looked_up[event_id]
        if found is None:
            return False
        seq, digest = found
        if digest != payload_digest(event):
            raise IdConflict(event_id, seq)
        return True


def payload_digest(event: Event) -> bytes:
    """SHA-256 of what the observer said: what a retry under the same id is compared by."""
    return hashlib.sha256(payload_bytes(event)).digest()


def lock_run(dialect: Dialect, connection: Connection, run_id: str) -> Any:
    """The run's row, locked until the transaction ends, with the database's clock; made when there is none."""
    row = connection.execute(dialect.lock_query, {"run": run_id}).first()
    if row is not None:
        return row
    refuse_text(run_id, run_id)
    insert = sqlite.insert if dialect.name == "sqlite" else postgresql.insert
    first = {"run_id": run_id, "head_seq": 0, "head_hash": genesis_hash(run_id), "recorded_at_ms": 0, "epoch": 0}
    connection.execute(insert(runs).values(first).on_conflict_do_nothing())
    return connection.execute(dialect.lock_query, {"run": run_id}).one()


def fence(row: Any, epoch: int, writer: str) -> None:
    """Refuse a writer whose epoch is not the run's.

    Raises:
        EpochFenced: the epoch is another, or belongs to another writer.
    """
    if row.epoch != epoch or row.lease_holder not in (None, writer):
        raise EpochFenced(row.run_id, epoch, writer, row.epoch, row.lease_holder)


def row_of(record: Record) -> tuple[Any, ...]:
    """The record's row, in the order of the table's columns."""
    return (
        record.run_id,
        record.seq,
        record.event_id,
        record.event.type,
        record.version,
        record.event.at_ms,
        record.event.source,
        record.recorded_at_ms,
        record.epoch,
        record.body,
        record.prev_hash,
        record.hash,
    )


def _refuse_unstorable(record: Record) -> None:
    if len(record.body) > MAX_EVENT_BYTES:
        raise EventRefused(record.event_id, f"{len(record.body)} bytes; the limit is {MAX_EVENT_BYTES}")
    source, type_ = record.event.source, record.event.type
    if not source or not type_ or "\0" in source or "\0" in type_:
        refuse_text(record.event_id, source, type_)


def refuse_text(event_id: str, *texts: str) -> None:
    """Refuse empty text, and NUL, which PostgreSQL cannot store: both databases keep the same logs.

    Raises:
        EventRefused: naming the text.
    """
    for value in texts:
        if not value or "\0" in value:
            raise EventRefused(event_id, f"{value!r} is empty or holds a NUL")
