"""What `lmr db` does: say where a log's schema stands, bring it up to date, check that it is whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmr.store import checking, migrate
from lmr.store.dialect import Dialect
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
    """Bring the schema up to this version's; an empty or missing database gets it whole.

    Returns:
        Where it stood before, and where it stands now.

    Raises:
        ForeignDatabase, SchemaNewer: it was not touched.
        LogUnavailable: it cannot be opened.
    """
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
    database = open_database(where, create=not read_only, read_only=read_only)
    try:
        yield database
    finally:
        database.close()
