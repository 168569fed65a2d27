"""What the two databases do differently. Everything else is written once, in SQLAlchemy Core."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Engine, Select, bindparam, select, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.sql import ColumnElement

from lmr.store.errors import LogUnavailable, StoreError
from lmr.store.schema import VERSION_TABLE, runs


class Dialect(ABC):
    """One open database.

    Attributes:
        name: `sqlite` or `postgresql`.
        url: where it is, without a password.
        engine: its connections.
        clock_ms: SQL for the database's own clock, in UTC Unix milliseconds.
        read_only: whether it was opened for reading only.
        guards: names of the triggers that keep the log append-only.
    """

    name: str
    url: str
    engine: Engine
    clock_ms: ColumnElement[int]
    read_only: bool
    guards: tuple[str, ...]

    @cached_property
    def lock_query(self) -> Select[Any]:
        """A run's row with the clock, locked until the transaction ends (SQLite has locked everything already)."""
        clock = self.clock_ms.label("clock_ms")
        return select(runs, clock).where(runs.c.run_id == bindparam("run")).with_for_update()

    @abstractmethod
    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction: committed at the end of the block, rolled back by an exception."""

    @abstractmethod
    def lock_schema(self, connection: Connection) -> None:
        """Let one process at a time create or migrate the schema, until its transaction ends."""

    @abstractmethod
    def tables(self, connection: Connection) -> set[str]:
        """Names of the tables that are there."""

    @abstractmethod
    def active_guards(self, connection: Connection) -> set[str]:
        """Names of the triggers that are there and switched on."""

    @abstractmethod
    def known_ids(self, connection: Connection, run_id: str, event_ids: Sequence[str]) -> Sequence[Any]:
        """Rows (event_id, seq, body) of those event ids that the run already has."""

    @abstractmethod
    def insert_events(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows to `events`, columns in the order of the table."""

    @abstractmethod
    def explain(self, error: DBAPIError) -> StoreError:
        """What the driver's error means to a caller."""

    @abstractmethod
    def hint(self, connection: Connection) -> None:
        """Tell followers that a run has grown. Only a hint: they poll besides."""

    @abstractmethod
    def wait_for_hint(self, timeout_ms: int) -> None:
        """Sleep until a run may have grown, at most `timeout_ms`."""

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction."""
        with self.errors(), self.engine.connect() as connection:
            yield connection

    def raw_rows(self, connection: Connection, query: Select[Any], values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """The rows as the driver hands them out. For readers of millions: SQLAlchemy's row objects cost seconds."""
        driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        cursor: Any = connection.execute(query, values).cursor
        try:
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        except driver_error as error:
            raise DBAPIError.instance(None, None, error, driver_error) from error
        return rows

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Say the driver's errors in the store's own words."""
        try:
            yield
        except DBAPIError as error:
            raise self.explain(error) from error
        except SQLAlchemyError as error:
            raise LogUnavailable(f"{self.url}: {error}") from error

    def revision(self, connection: Connection) -> str | None:
        """Revision of the schema; None in a database without one."""
        if VERSION_TABLE not in self.tables(connection):
            return None
        row = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).first()  # noqa: S608 - a constant
        return None if row is None else str(row[0])

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()
