"""The schema's revisions: which one a database has, whether it fits this software, and how to get there.

Alembic runs inside one transaction of ours on both dialects (their DDL is transactional), so a migration that is
killed half way has not happened. Opening a log never migrates it: an agent of another version may be using it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection

from lmr.store.dialect import Dialect
from lmr.store.errors import ForeignDatabase, LogUnavailable, SchemaNewer, SchemaOlder
from lmr.store.schema import VERSION_TABLE, metadata

REVISIONS = ("0001", "0002", "0003", "0004")
"""Every revision, oldest first. The last is the one this software writes."""

HEAD = REVISIONS[-1]
_FOLDER = Path(__file__).parent / "migrations"

Standing = Literal["empty", "older", "current", "newer", "foreign"]


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """Where a database stands: its revision (None without one), ours, and how they compare."""

    url: str
    revision: str | None
    head: str
    standing: Standing


def status(database: Dialect, connection: Connection) -> SchemaStatus:
    """How the database's schema compares to ours. Reads only."""
    tables = database.tables(connection)
    if VERSION_TABLE not in tables:
        foreign = tables & set(metadata.tables) if database.name == "postgresql" else tables
        return SchemaStatus(database.url, None, HEAD, "foreign" if foreign else "empty")
    revision = database.revision(connection)
    standing: Standing = "newer"
    if revision == HEAD:
        standing = "current"
    elif revision in REVISIONS:
        standing = "older"
    return SchemaStatus(database.url, revision, HEAD, standing)


def require(found: SchemaStatus) -> None:
    """Refuse a schema this software must not touch; an empty database is fine.

    Raises:
        ForeignDatabase, SchemaNewer, SchemaOlder: as `found` says.
    """
    if found.standing == "foreign":
        raise ForeignDatabase(f"{found.url}: holds tables, but is no event log of ours")
    if found.standing == "newer":
        raise SchemaNewer(
            f"{found.url}: schema {found.revision} is newer than {HEAD}, which this version knows; "
            "use the version of lm-resiliency-engine that wrote it, or a later one"
        )
    if found.standing == "older":
        raise SchemaOlder(
            f"{found.url}: schema {found.revision} is older than {HEAD}; end the runs that use it, "
            "then: lmr db upgrade URL"
        )


def prepare(database: Dialect, *, create: bool) -> None:
    """Make sure the database has our schema.

    Raises:
        LogUnavailable: it is empty and may not be filled.
        ForeignDatabase, SchemaNewer, SchemaOlder: see `require`.
    """
    with database.read() as connection:
        found = status(database, connection)
    require(found)
    if found.standing == "current":
        return
    if not create:
        raise LogUnavailable(f"{database.url}: holds no event log")
    with database.write() as connection:
        database.lock_schema(connection)
        found = status(database, connection)  # somebody else may have been faster
        require(found)
        if found.standing == "empty":
            migrate(connection, HEAD)


def upgrade(database: Dialect) -> tuple[SchemaStatus, SchemaStatus]:
    """Bring the schema up to this version's, in one transaction; an empty database gets it whole.

    Writers wait meanwhile. Agents of an older version that have the log open go on; they cannot open it anew.

    Returns:
        Where it stood before, and where it stands now.

    Raises:
        ForeignDatabase, SchemaNewer: it was not touched.
    """
    with database.write() as connection:
        database.lock_schema(connection)
        before = status(database, connection)
        if before.standing != "older":
            require(before)
        if before.standing != "current":
            migrate(connection, HEAD)
        return before, status(database, connection)


def migrate(connection: Connection, revision: str) -> None:
    """Run the revisions up to `revision` inside the connection's transaction."""
    # Imported here: only creating and upgrading need Alembic, and every agent opens a log.
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    script = ScriptDirectory.from_config(config)
    with EnvironmentContext(
        config,
        script,
        fn=lambda current, _: script._upgrade_revs(revision, current),
        destination_rev=revision,
    ) as environment:
        environment.configure(connection=connection, version_table=VERSION_TABLE, transactional_ddl=True)
        environment.run_migrations()
