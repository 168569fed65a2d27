"""What `lmr db` does: say where a log's schema stands, bring it up to date, check that it is whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmr.store import checking, migrate
from lmr.store.dialect import Dialect
from lmr.store.errors import LogUnavailable
from lmr.store.migrate import SchemaStatus
from lmr.store.opening import open_database


def current(where: str | Path) -> SchemaStatus:
    """Where the database's schema stands. Changes nothing.

    Raises:
        LogUnavailable: it cannot be opened.
    """
    with _opened(where, read_only=True) as database, database.read() as connection:
        return migrate.status(database, connection)


def upgrade(where: str | Path) -> tuple[SchemaStatus, SchemaStatus]:
    """Bring the schema up to this version's; an empty PostgreSQL schema gets it whole.

    SQLite is another matter: a run makes its own file, so one that is missing or empty is a name mistyped.

    Returns:
        Where it stood before, and where it stands now.

    Raises:
        ForeignDatabase, SchemaNewer: it was not touched.
        LogUnavailable: it cannot be opened, or is an SQLite file that holds no log.
    """
    found = current(where)  # before anything that writes: SQLite would make a database of an empty file
    if found.standing == "empty" and found.url.startswith("sqlite:"):
        raise LogUnavailable(f"{found.url}: holds no event log")
    with _opened(where, read_only=False) as database:
        return migrate.upgrade(database)


def check(where: str | Path) -> list[str]:
    """One line for each fault of the schema: revision, tables, columns, views, guards; empty when all is well.

    Raises:
        LogUnavailable: it cannot be opened.
    """
    with _opened(where, read_only=True) as database:
        return checking.check(database)


@contextmanager
def _opened(where: str | Path, *, read_only: bool) -> Iterator[Dialect]:
    database = open_database(where, create=False, read_only=read_only)
    try:
        yield database
    finally:
        database.close()
