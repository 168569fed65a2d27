"""Records that already have their place (from a file, or decided offline) written to a database as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from sqlalchemy.exc import SQLAlchemyError

from lmr.engine.record import Record, genesis_hash
from lmr.replay_tool.database import clause, shown_address
from lmr.replay_tool.errors import LogBroken, Unreadable, Usage
from lmr.store import EventLog, Head, HeadMoved, LogCorrupt, StoreError, open_log
from lmr.store.restoring import restore_records


def open_for_import(into: str) -> EventLog:
    """The log to write to, made when there is none.

    Raises:
        Unreadable: it cannot be opened or is not an event log of this version.
    """
    try:
        return open_log(into, create=True)
    except (StoreError, SQLAlchemyError) as error:
        raise Unreadable(shown_address(into), clause(error, shown_address(into))) from error
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
    except LogCorrupt as error:
        raise LogBroken("what was to be written", error.seq, f"{error.what}; nothing was written") from error
    except (StoreError, SQLAlchemyError) as error:
        raise Unreadable(shown_address(into), clause(error, shown_address(into))) from error
    finally:
        log.close()


def _keep(log: EventLog, records: Iterator[Record], into: str) -> Head:
    first = next(records, None)
    if first is None:
        raise Unreadable(into, "there is nothing to write")
    found = log.head(first.run_id)
    if found.seq:
        return _same_or_refuse(first, records, found)
    base = Head(0, genesis_hash(first.run_id))
    with log.database.write() as connection:
        return restore_records(log.database, connection, first.run_id, base, chain((first,), records))


def _same_or_refuse(first: Record, records: Iterable[Record], found: Head) -> Head:
    last = first
    for last in records:  # noqa: B007 - only the last one is wanted
        pass
    if (last.seq, last.hash) != (found.seq, found.hash):
        raise HeadMoved(first.run_id, 0, found.seq)
    return found
