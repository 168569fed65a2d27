"""SQLite: one file beside the job. WAL with `synchronous=FULL`, so that an acknowledged event survives a power cut.

Writers say BEGIN IMMEDIATE: a transaction that reads the head and then writes may never find, at the write, that
somebody else was faster. On a network file system, where WAL's shared memory does not work, the journal is DELETE and
the one process that opens the file first has it alone.
"""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import structlog
from sqlalchemy import Connection, create_engine, event, literal_column, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from lmr.store.dialect import Dialect
from lmr.store.errors import ForeignDatabase, LogReadOnly, LogUnavailable, StoreError
from lmr.store.filesystems import filesystem_of, is_network

log = structlog.get_logger(__name__)

BUSY_TIMEOUT_S = 10
"""How long a writer waits for another process's transaction. Appends take milliseconds; ten seconds is a stuck one."""

_POLL_MS = 100
_APPEND_ONLY = ("events", "epochs", "snapshots", "seals", "archived_ids")
_INSERT = (
    "INSERT INTO events (run_id, seq, event_id, type, version, at_ms, source, recorded_at_ms, epoch, body, prev_hash,"
    " hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_KNOWN = "SELECT event_id, seq, body FROM events WHERE run_id = ? AND event_id = ?"
_KNOWN_MANY = "SELECT event_id, seq, body FROM events WHERE run_id = ? AND event_id IN (SELECT value FROM json_each(?))"


class SQLite(Dialect):
    """An SQLite file."""

    name = "sqlite"
    guards = (
        *(f"{table}_no_{verb}" for table in _APPEND_ONLY for verb in ("update", "delete")),
        "events_behind_head",
        "runs_only_forward",
        "runs_no_delete",
        "runs_archive_sealed",
    )
    clock_ms = literal_column("CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)")

    def __init__(self, path: Path, *, create: bool, read_only: bool) -> None:
        """Open the file.

        Raises:
            LogUnavailable: it cannot be opened.
        """
        self.path = path
        self.url = f"sqlite:///{path}"
        self.read_only = read_only
        self.network = is_network(filesystem := filesystem_of(path))
        self._uri = self._locate(create)
        # Threads of one process queue here instead of sleeping in SQLite's busy handler.
        self._writers = threading.RLock()
        if self.network and not read_only:
            log.warning(
                "log_on_network_filesystem",
                path=str(path),
                filesystem=filesystem,
                consequence="DELETE journal and an exclusive lock; for several machines use PostgreSQL "
                "(lm_resiliency_event_log=postgresql+psycopg://...)",
            )
        # The exclusive lock belongs to a connection, so there can be only one.
        size = 1 if self.network else 8
        self.engine = create_engine(
            "sqlite://", creator=self._connect, poolclass=QueuePool, pool_size=size, max_overflow=0 if size == 1 else 24
        )
        event.listen(self.engine, "begin", self._begin)

    def _locate(self, create: bool) -> str:
        """The URI to connect by; makes the folder when a new log may be created."""
        if self.path.is_dir():
            raise LogUnavailable(f"{self.url}: is a folder, not a file")
        if not self.path.exists():
            if self.read_only or not create:
                raise LogUnavailable(f"{self.url}: no such file")
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LogUnavailable(f"{self.url}: {error.strerror or error}") from error
        name = quote(str(self.path.absolute()))
        if not self.read_only:
            return f"file:{name}?mode={'rwc' if create else 'rw'}"
        wal = Path(f"{self.path}-wal")
        if not os.access(self.path.parent, os.W_OK, effective_ids=True) and not (wal.exists() and wal.stat().st_size):
            return f"file:{name}?immutable=1"  # WAL mode needs a -shm file, which cannot be made here
        return f"file:{name}?mode=ro"

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            if not self.read_only:
                if self.network:
                    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
                    connection.execute("PRAGMA journal_mode=DELETE")
                else:
                    connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute("PRAGMA recursive_triggers=ON")
        except BaseException:
            connection.close()
            raise
        return connection

    @staticmethod
    def _begin(connection: Connection) -> None:
        mode = "IMMEDIATE" if connection.get_execution_options().get("lmr_write") else "DEFERRED"
        connection.exec_driver_sql(f"BEGIN {mode}")

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """BEGIN IMMEDIATE; threads of this process take turns."""
        if self.read_only:
            raise LogReadOnly(f"{self.url}: opened for reading only")
        with (
            self._writers,
            self.errors(),
            self.engine.connect().execution_options(lmr_write=True) as connection,
            connection.begin(),
        ):
            yield connection

    def lock_schema(self, connection: Connection) -> None:
        """BEGIN IMMEDIATE has done it."""

    def tables(self, connection: Connection) -> set[str]:
        """Names of the tables of the file."""
        return set(connection.scalars(text("SELECT name FROM sqlite_master WHERE type = 'table'")))

    def active_guards(self, connection: Connection) -> set[str]:
        """SQLite cannot switch a trigger off."""
        return set(connection.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")))

    def definitions(self, connection: Connection) -> dict[str, str]:
        """The statements that views and triggers were made with."""
        query = "SELECT type || ' ' || name, sql FROM sqlite_master WHERE type IN ('view', 'trigger')"
        return {str(name): str(sql) for name, sql in connection.execute(text(query))}

    def known_ids(self, connection: Connection, run_id: str, event_ids: Sequence[str]) -> Sequence[Any]:
        """One id by the index; many in one statement."""
        if len(event_ids) == 1:
            return connection.exec_driver_sql(_KNOWN, (run_id, event_ids[0])).fetchall()
        return connection.exec_driver_sql(_KNOWN_MANY, (run_id, json.dumps(event_ids))).fetchall()

    def insert_events(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """One prepared statement."""
        connection.exec_driver_sql(_INSERT, rows if len(rows) > 1 else rows[0])

    def hint(self, connection: Connection) -> None:
        """SQLite has no such thing."""

    def wait_for_hint(self, timeout_ms: int) -> None:
        """Sleep; asking a local file ten times a second costs nothing."""
        time.sleep(min(timeout_ms, _POLL_MS) / 1000)

    def explain(self, error: DBAPIError) -> StoreError:
        """By SQLite's message."""
        words = str(error.orig)
        if "not a database" in words or "file is encrypted" in words:
            return ForeignDatabase(f"{self.url}: not an SQLite database")
        if "readonly" in words:
            return LogReadOnly(f"{self.url}: {words}")
        if "locked" in words or "busy" in words:
            return LogUnavailable(f"{self.url}: locked by another process for more than {BUSY_TIMEOUT_S} s")
        return LogUnavailable(f"{self.url}: {words}")
