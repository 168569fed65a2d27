"""Is a log's schema whole? What `lmr db check` asks."""

from sqlalchemy import inspect

from lmr.store.dialect import Dialect
from lmr.store.migrate import status
from lmr.store.schema import AUDIT_VIEWS, metadata


def check(database: Dialect) -> list[str]:
    """What is wrong with the schema: its revision, missing tables, columns, views, and switched-off guards.

    Returns:
        One line for each fault; empty when all is well.

    Raises:
        LogUnavailable: the database cannot be reached.
    """
    with database.read() as connection:
        found = status(database, connection)
    if found.standing != "current":
        return [f"schema is {found.revision or 'absent'} ({found.standing}); this version writes {found.head}"]
    return [*_missing_columns(database), *_missing_views(database), *_missing_guards(database)]


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
