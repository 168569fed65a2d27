"""What `lmr db` does: say where a log's schema stands, bring it up to date, check that it is whole."""

from pathlib import Path

from sqlalchemy import inspect

from lmr.store.dialect import Dialect
from lmr.store.migrate import HEAD, SchemaStatus, migrate, require, status
from lmr.store.opening import open_database
from lmr.store.schema import AUDIT_VIEWS, metadata


def current(where: str | Path) -> SchemaStatus:
    """Where the database's schema stands. Changes nothing.

    Raises:
        LogUnavailable: it cannot be opened.
    """
    database = open_database(where, create=False, read_only=True)
    try:
        with database.read() as connection:
            return status(database, connection)
    finally:
        database.close()


def upgrade(where: str | Path) -> tuple[SchemaStatus, SchemaStatus]:
    """Bring the schema up to this version's, in one transaction; an empty database gets it whole.

    Writers wait meanwhile. Agents of an older version that have the log open go on; they cannot open it anew.

    Returns:
        Where it stood before, and where it stands now.

    Raises:
        ForeignDatabase, SchemaNewer: it was not touched.
        LogUnavailable: it cannot be opened.
    """
    database = open_database(where, create=True, read_only=False)
    try:
        with database.write() as connection:
            database.lock_schema(connection)
            before = status(database, connection)
            if before.standing != "older":
                require(before)
            if before.standing != "current":
                migrate(connection, HEAD)
            return before, status(database, connection)
    finally:
        database.close()


def check(where: str | Path) -> list[str]:
    """What is wrong with the schema: its revision, missing tables, columns, views, and switched-off guards.

    Returns:
        One line for each fault; empty when all is well.

    Raises:
        LogUnavailable: it cannot be opened.
    """
    database = open_database(where, create=False, read_only=True)
    try:
        with database.read() as connection:
            found = status(database, connection)
        if found.standing != "current":
            return [f"schema is {found.revision or 'absent'} ({found.standing}); this version writes {found.head}"]
        return [*_missing_columns(database), *_missing_views(database), *_missing_guards(database)]
    finally:
        database.close()


def _missing_columns(database: Dialect) -> list[str]:
    with database.read() as connection:
        tables = database.tables(connection)
        inspector = inspect(connection)
        faults = []
        for table in metadata.sorted_tables:
            if table.name not in tables:
                faults.append(f"table {table.name} is missing")
                continue
            columns = {column["name"] for column in inspector.get_columns(table.name)}
            faults += [
                f"column {table.name}.{column.name} is missing" for column in table.c if column.name not in columns
            ]
        return faults


def _missing_views(database: Dialect) -> list[str]:
    with database.read() as connection:
        views = set(inspect(connection).get_view_names())
    return [f"view {name} is missing" for name in AUDIT_VIEWS if name not in views]


def _missing_guards(database: Dialect) -> list[str]:
    with database.read() as connection:
        active = database.active_guards(connection)
    return [f"trigger {name} is missing or switched off" for name in database.guards if name not in active]
