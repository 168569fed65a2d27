"""PostgreSQL: one server for jobs that outgrow one machine.

Appends lock the run's head row, so `seq` is dense: from a sequence a reader gets id 2 before id 1 and, keeping a
cursor, never sees 1. A writer that is stopped in the middle of a transaction holds that lock; the server ends its
session after `IDLE_IN_TRANSACTION_MS`, so that another can take over.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, bindparam, create_engine, literal_column, select, text
from sqlalchemy.exc import DBAPIError

from lmr.store.dialect import Dialect
from lmr.store.errors import ConnectionLost, ForeignDatabase, LogReadOnly, LogUnavailable, StoreError
from lmr.store.schema import events

IDLE_IN_TRANSACTION_MS = 5_000
"""After this long without a statement inside a transaction the server ends the session and frees the head row."""

LOCK_TIMEOUT_MS = 15_000
"""How long a writer waits for another's transaction: longer than an abandoned one can last."""

CONNECT_TIMEOUT_S = 10
HINT_EVERY_MS = 50
"""Least time between two NOTIFYs of one process. One in each transaction costs a fifth of the appends."""

CHANNEL = "lmr_log"
_SCHEMA_LOCK = 0x4C4D52
_POLL_MS = 100
_REFUSED_FOR_NOW = ("starting up", "shutting down", "recovery", "too many", "remaining connection slots", "terminating")
_APPEND_ONLY = ("events", "epochs", "snapshots", "seals", "archived_ids")

_INSERT = (
    "INSERT INTO events (run_id, seq, event_id, type, version, at_ms, source, recorded_at_ms, epoch, body, prev_hash,"
    " hash) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_known = select(events.c.event_id, events.c.seq, events.c.body).where(
    events.c.run_id == bindparam("run"), events.c.event_id == bindparam("event")
)
_known_many = text("SELECT event_id, seq, body FROM events WHERE run_id = :run AND event_id = ANY(:events)")


class PostgreSQL(Dialect):
    """A database on a PostgreSQL server, by psycopg 3."""

    name = "postgresql"
    guards = (
        *(f"{table}_no_{what}" for table in _APPEND_ONLY for what in ("change", "truncate")),
        "runs_only_forward",
        "runs_no_delete",
        "runs_no_truncate",
        "runs_archive_sealed",
    )
    clock_ms = literal_column("CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS bigint)")

    def __init__(self, url: URL, *, read_only: bool) -> None:
        """Name the server; the first transaction connects.

        Raises:
            LogUnavailable: psycopg is not installed.
        """
        self.url = url.render_as_string(hide_password=True)
        self.read_only = read_only
        self._hinted_at = 0.0
        self._local = threading.local()  # a follower's thread has a listening connection
        settings = {
            "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
            "lock_timeout": LOCK_TIMEOUT_MS,
            "default_transaction_read_only": "on" if read_only else None,
        }
        options = " ".join(f"-c {key}={value}" for key, value in settings.items() if value is not None)
        given = url.query.get("options", "")
        self._connect_args = {
            "options": f"{options} {given}".strip(),
            "connect_timeout": CONNECT_TIMEOUT_S,
            "application_name": "lm-resiliency",
        }
        try:
            self.engine = create_engine(
                url.difference_update_query(["options"]),
                connect_args=self._connect_args,
                pool_size=8,
                max_overflow=24,
            )
        except ImportError as error:
            raise LogUnavailable(f"{self.url}: needs psycopg: pip install 'lm-resiliency-engine[postgres]'") from error

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction at the server's default isolation; the head row's lock makes it serial."""
        if self.read_only:
            raise LogReadOnly(f"{self.url}: opened for reading only")
        with self.errors(), self.engine.begin() as connection:
            yield connection

    def lock_schema(self, connection: Connection) -> None:
        """An advisory lock of the transaction."""
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})

    def tables(self, connection: Connection) -> set[str]:
        """Names of the tables of the current schema."""
        query = text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        return set(connection.scalars(query))

    def active_guards(self, connection: Connection) -> set[str]:
        """Those that fire ALWAYS, for replication roles too."""
        query = text(
            "SELECT t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND t.tgenabled = 'A'"
        )
        return set(connection.scalars(query))

    def known_ids(self, connection: Connection, run_id: str, event_ids: Sequence[str]) -> Sequence[Any]:
        """One id by the index; many in one statement."""
        if len(event_ids) == 1:
            return connection.execute(_known, {"run": run_id, "event": event_ids[0]}).fetchall()
        return connection.execute(_known_many, {"run": run_id, "events": list(event_ids)}).fetchall()

    def insert_events(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Pipelined, one prepared statement."""
        connection.exec_driver_sql(_INSERT, rows if len(rows) > 1 else rows[0])

    def hint(self, connection: Connection) -> None:
        """NOTIFY, at most once in `HINT_EVERY_MS`."""
        now = time.monotonic()
        if now - self._hinted_at >= HINT_EVERY_MS / 1000:
            self._hinted_at = now
            connection.execute(text("SELECT pg_notify(:channel, '')"), {"channel": CHANNEL})

    def wait_for_hint(self, timeout_ms: int) -> None:
        """LISTEN on a connection of this thread. Where that does not work (a pooler), sleep a little and poll."""
        from psycopg import Error  # an extra: who reads SQLite files has none

        try:
            heard = list(self._listener().notifies(timeout=timeout_ms / 1000, stop_after=1))
        except Error:
            self._local.listener = None
            heard = []
        if not heard:
            time.sleep(min(timeout_ms, _POLL_MS) / 1000)

    def _listener(self) -> Any:
        from psycopg import connect

        listener = getattr(self._local, "listener", None)
        if listener is None:
            arguments, keywords = self.engine.dialect.create_connect_args(self.engine.url)
            listener = connect(*arguments, **{**keywords, **self._connect_args}, autocommit=True)
            listener.execute(f"LISTEN {CHANNEL}")
            self._local.listener = listener
        return listener

    def explain(self, error: DBAPIError) -> StoreError:
        """By SQLSTATE."""
        words = str(error.orig).strip()
        code = getattr(error.orig, "sqlstate", None)
        if code in ("25006", "42501"):  # a replica or a read-only session; a role without the grant
            return LogReadOnly(f"{self.url}: {words}")
        if code == "42P01":
            return ForeignDatabase(f"{self.url}: {words}")
        # Without a code the server did not answer at all (refused, reset, not there), or refused a new connection, and
        # only its words say whether for good: no such database, role or password.
        no_answer = code is None and type(error.orig).__name__ == "OperationalError"
        if no_answer and "FATAL:" in words and not any(soon in words for soon in _REFUSED_FOR_NOW):
            return LogUnavailable(f"{self.url}: {words}")
        if error.connection_invalidated or no_answer or code in ("57P01", "57P02", "57P03", "25P03"):
            return ConnectionLost(f"{self.url}: {words}")
        return LogUnavailable(f"{self.url}: {words}")
