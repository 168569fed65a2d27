"""Reading a run in order, a page at a time: constant memory, and no transaction held open between pages."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, bindparam, select

from lmr.engine.record import Record, open_record
from lmr.store.errors import LogCorrupt, SegmentArchived
from lmr.store.schema import events, runs

PAGE_ROWS = 1_000

_page = (
    select(events.c.seq, events.c.body, events.c.prev_hash, events.c.hash)
    .where(events.c.run_id == bindparam("run"), events.c.seq > bindparam("after"))
    .order_by(events.c.seq)
    .limit(bindparam("rows"))
)


def page_after(connection: Connection, run_id: str, after: int, rows: int) -> list[Any]:
    """At most `rows` rows (seq, body, prev_hash, hash) behind `after`, in order."""
    return list(connection.execute(_page, {"run": run_id, "after": after, "rows": rows}))


def open_page(rows: list[Any], after: int, last_hash: str | None) -> Iterator[Record]:
    """The records of a page that begins behind `after`, whose record has the hash `last_hash` (None: not known).

    Raises:
        LogCorrupt: a record is missing or does not chain to the one before it. What lies behind a gap is not read.
    """
    for seq, body, prev_hash, hash_ in rows:
        if seq != after + 1:
            raise LogCorrupt(after + 1, "the record is missing")
        if last_hash is not None and prev_hash != last_hash:
            raise LogCorrupt(seq, "does not chain to the record before it")
        yield open_record(bytes(body), prev_hash, hash_)
        after, last_hash = seq, hash_


def refuse_archived(connection: Connection, run_id: str, after: int) -> None:
    """Say so when what lies behind `after` is not lost but archived.

    Raises:
        SegmentArchived: it was archived.
    """
    archived = connection.scalar(select(runs.c.archived_seq).where(runs.c.run_id == run_id)) or 0
    if after < archived:
        raise SegmentArchived(run_id, archived)


def records_after(connection: Connection, run_id: str, after: int, limit: int | None) -> Iterator[Record]:
    """The records behind `after` as this connection sees them.

    Raises:
        LogCorrupt: see `open_page`.
    """
    last_hash = None
    left = limit
    while left is None or left > 0:
        wanted = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
        rows = page_after(connection, run_id, after, wanted)
        if not rows or rows[0].seq != after + 1:
            refuse_archived(connection, run_id, after)
        yield from open_page(rows, after, last_hash)
        if len(rows) < wanted:
            return
        after, last_hash = rows[-1].seq, rows[-1].hash
        left = None if left is None else left - len(rows)
