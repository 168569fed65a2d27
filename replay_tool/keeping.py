"""Records that already have their place (from a file, or decided offline) written to a database as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError

from lmr.engine.record import Record, genesis_hash, record_hash
from lmr.replay_tool.database import clause, shown_address
from lmr.replay_tool.errors import LogBroken, ReplayError, Unreadable, Usage
from lmr.store import EventLog, Head, HeadMoved, StoreError, open_log
from lmr.store.schema import runs
from lmr.store.writing import lock_run, row_of

_ROWS = 1_000


def open_for_import(into: str) -> EventLog:
    """The log to write to, made when there is none.

    Raises:
        Unreadable: it cannot be opened or is not an event log of this version.
    """
    try:
        return open_log(into, create=True)
    except (StoreError, SQLAlchemyError) as error:
        raise Unreadable(shown_address(into), clause(error)) from error
    except ModuleNotFoundError as error:
        raise Unreadable(shown_address(into), f"the driver {error.name} is not installed") from error


def keep_records(records: Iterable[Record], into: str) -> Head:
    """Writes one run's records, hashes and all, in one transaction. Writing the same again changes nothing.

    Args:
        records: the whole run from seq 1, chained.
        into: SQLAlchemy URL or SQLite path.

    Returns:
        The head written.

    Raises:
        Usage: the log already has this run, with other records.
        LogBroken: the records do not chain; nothing was written.
        Unreadable: the database cannot be opened.
    """
    log = open_for_import(into)
    try:
        return _keep(log, iter(records), into)
    except HeadMoved as error:
        raise Usage(f"{shown_address(into)}: {error}; import under another run, or into another log") from error
    except (StoreError, SQLAlchemyError) as error:
        if isinstance(error, ReplayError):
            raise
        raise Unreadable(shown_address(into), clause(error)) from error
    finally:
        log.close()


def _keep(log: EventLog, records: Any, into: str) -> Head:
    first = next(records, None)
    if first is None:
        raise Unreadable(into, "there is nothing to write")
    run_id = first.run_id
    found = log.head(run_id)
    if found.seq:
        return _same_or_refuse(first, records, run_id, found)
    head = Head(0, genesis_hash(run_id))
    with log.database.write() as connection:
        row = lock_run(log.database, connection, run_id)
        if row.head_seq:
            raise HeadMoved(run_id, 0, row.head_seq)
        rows: list[tuple[Any, ...]] = []
        record: Record | None = first
        epoch = recorded_at_ms = 0
        while record is not None:
            head = _checked(record, head, into)
            epoch, recorded_at_ms = max(epoch, record.epoch), record.recorded_at_ms
            rows.append(row_of(record))
            if len(rows) == _ROWS:
                log.database.insert_events(connection, rows)
                rows = []
            record = next(records, None)
        if rows:
            log.database.insert_events(connection, rows)
        values = {"head_seq": head.seq, "head_hash": head.hash, "recorded_at_ms": recorded_at_ms, "epoch": epoch}
        connection.execute(update(runs).where(runs.c.run_id == run_id).values(**values))
    return head


def _checked(record: Record, head: Head, into: str) -> Head:
    if record.seq != head.seq + 1 or record.prev_hash != head.hash:
        raise LogBroken(into, record.seq, "does not continue the record before it; nothing was written")
    if record_hash(record.prev_hash, record.body) != record.hash:
        raise LogBroken(into, record.seq, "its bytes are not what its hash says; nothing was written")
    return Head(record.seq, record.hash)


def _same_or_refuse(first: Record, records: Iterable[Record], run_id: str, found: Head) -> Head:
    last = first
    for last in records:  # noqa: B007 - only the last one is wanted
        pass
    if (last.seq, last.hash) != (found.seq, found.hash):
        raise HeadMoved(run_id, 0, found.seq)
    return found
