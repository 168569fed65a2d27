"""Opening a log: find the dialect, look before touching, create only in an empty database."""

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from lmr.store.dialect import Dialect
from lmr.store.errors import LogUnavailable
from lmr.store.log import EventLog
from lmr.store.migrate import prepare
from lmr.store.postgresql import PostgreSQL
from lmr.store.sqlite import SQLite


def open_log(where: str | Path, *, create: bool = True, read_only: bool = False) -> EventLog:
    """Open the log at an SQLAlchemy URL or an SQLite path.

    Args:
        where: `sqlite:///FILE`, `postgresql+psycopg://...`, or a path.
        create: make the file and the schema when there is none. An older schema is never upgraded here.
        read_only: refuse every write, on the database's side.

    Raises:
        LogUnavailable: cannot be opened or reached, or is not there and may not be created.
        ForeignDatabase: the database is not ours.
        SchemaNewer, SchemaOlder: the log needs another version of this software, or `lmr db upgrade`.
    """
    database = open_database(where, create=create, read_only=read_only)
    try:
        prepare(database, create=create and not read_only)
    except BaseException:
        database.close()
        raise
    return EventLog(database)


def open_database(where: str | Path, *, create: bool, read_only: bool) -> Dialect:
    """The database itself, whatever its schema.

    Raises:
        LogUnavailable: cannot be opened, or the URL names no database we know.
    """
    if isinstance(where, Path) or "://" not in where:
        return SQLite(Path(where), create=create, read_only=read_only)
    try:
        url = make_url(where)
    except (ArgumentError, ValueError) as error:
        raise LogUnavailable(f"not a database URL: {where.split('://')[0]}://...: {error}") from error
    backend = url.get_backend_name()
    if backend == "sqlite":
        if not url.database or url.database == ":memory:":
            raise LogUnavailable("sqlite:// needs a file: sqlite:///relative/path or sqlite:////absolute/path")
        return SQLite(Path(url.database), create=create, read_only=read_only)
    if backend in ("postgresql", "postgres"):
        return PostgreSQL(_with_psycopg(url), read_only=read_only)
    raise LogUnavailable(f"unknown database {backend!r}; allowed: sqlite:///FILE, postgresql+psycopg://HOST/NAME")


def _with_psycopg(url: URL) -> URL:
    return url.set(drivername="postgresql+psycopg")
