"""What somebody with the database's own rights can do to a log, on either dialect."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from lmr.engine.record import record_hash
from lmr.store import EventLog

_TABLES = ("events", "runs", "epochs", "snapshots", "seals", "archived_ids")


@contextmanager
def unguarded(log: EventLog) -> Iterator[Connection]:
    """A transaction with the append-only triggers switched off (on SQLite for good)."""
    with log.database.write() as connection:
        if log.dialect == "sqlite":
            for name in connection.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all():
                connection.execute(text(f"DROP TRIGGER {name}"))
        else:
            for table in _TABLES:
                connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        yield connection
        if log.dialect == "postgresql":
            for table in _TABLES:
                connection.execute(text(f"ALTER TABLE {table} ENABLE TRIGGER USER"))


def rechain(connection: Connection, run_id: str, first: int) -> None:
    """Recompute every hash from `first` on, and the head: what a patient forger would do."""
    previous = connection.scalar(
        text("SELECT hash FROM events WHERE run_id = :r AND seq = :s"), {"r": run_id, "s": first - 1}
    )
    rows = connection.execute(
        text("SELECT seq, body FROM events WHERE run_id = :r AND seq >= :s ORDER BY seq"), {"r": run_id, "s": first}
    ).all()
    for seq, body in rows:
        hash_ = record_hash(previous, bytes(body))
        connection.execute(
            text("UPDATE events SET prev_hash = :p, hash = :h WHERE run_id = :r AND seq = :s"),
            {"p": previous, "h": hash_, "r": run_id, "s": seq},
        )
        previous = hash_
    connection.execute(
        text("UPDATE runs SET head_seq = :s, head_hash = :h WHERE run_id = :r"),
        {"s": rows[-1].seq, "h": previous, "r": run_id},
    )
