"""Is a log's schema whole? What `lmr db check` asks."""

import tempfile
from pathlib import Path

from sqlalchemy import inspect

from lmr.store.dialect import Dialect
from lmr.store.migrate import prepare, status
from lmr.store.schema import AUDIT_VIEWS, metadata
from lmr.store.sqlite import SQLite


def check(database: Dialect) -> list[str]:
    """What is wrong with the schema: its revision, missing tables, columns, views, and switched-off guards.

    On SQLite also views and triggers that are not those of this version: whoever can write the file can replace them.
    On PostgreSQL only the schema's owner can.

    Returns:
        One line for each fault; empty when all is well.

    Raises:
        LogUnavailable: the database cannot be reached.
    """
    with database.read() as connection:
        found = status(database, connection)
    if found.standing != "current":
        return [f"schema is {found.revision or 'absent'} ({found.standing}); this version writes {found.head}"]
    missing = [*_missing_columns(database), *_missing_views(database), *_missing_guards(database)]
    return missing or _changed_definitions(database)


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


def _changed_definitions(database: Dialect) -> list[str]:
    """Compared with those of a log that is made anew."""
    if not isinstance(database, SQLite):
        return []
    with database.read() as connection:
        found = database.definitions(connection)
    with tempfile.TemporaryDirectory() as folder:
        fresh = SQLite(Path(folder) / "fresh.db", create=True, read_only=False)
        try:
            prepare(fresh, create=True)
            with fresh.read() as connection:
                expected = fresh.definitions(connection)
        finally:
            fresh.close()
    changed = [f"{name} is not this version's" for name in expected if found.get(name) != expected[name]]
    return changed + [f"{name} is none of ours" for name in found if name not in expected]
