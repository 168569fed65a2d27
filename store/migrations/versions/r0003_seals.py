"""Snapshots, seals, and the archive: old records may leave, but only from the front, sealed, and leaving their ids.

Revision ID: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables and let the delete trigger of `events` pass what has been archived."""
    op.add_column("runs", sa.Column("archived_seq", sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "snapshots",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("engine", sa.Text, nullable=False),
        sa.Column("state_digest", sa.Text, nullable=False),
        sa.Column("state", sa.LargeBinary, nullable=False),
        sa.Column("taken_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq"),
    )
    op.create_table(
        "seals",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("through_seq", sa.BigInteger, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.Column("state_digest", sa.Text, nullable=False),
        sa.Column("root_hash", sa.Text, nullable=False),
        sa.Column("sealed_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "through_seq"),
    )
    op.create_table(
        "archived_ids",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("event_id", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("payload_digest", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "event_id"),
    )
    connection = op.get_bind()
    for statement in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL:
        connection.exec_driver_sql(statement)


_TABLES = ("snapshots", "seals", "archived_ids")

_SQLITE = (
    *(
        f"""CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table}
            BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"""
        for table in _TABLES
        for verb in ("UPDATE", "DELETE")
    ),
    "DROP TRIGGER events_no_delete",
    """CREATE TRIGGER events_no_delete BEFORE DELETE ON events
       WHEN OLD.seq > coalesce((SELECT archived_seq FROM runs WHERE run_id = OLD.run_id), 0)
       BEGIN SELECT RAISE(ABORT, 'events is append-only'); END""",
    """CREATE TRIGGER runs_archive_sealed BEFORE UPDATE OF archived_seq ON runs
       WHEN NEW.archived_seq < OLD.archived_seq OR (NEW.archived_seq > OLD.archived_seq AND NOT EXISTS
         (SELECT 1 FROM seals WHERE run_id = NEW.run_id AND through_seq = NEW.archived_seq))
       BEGIN SELECT RAISE(ABORT, 'only a sealed segment can be archived'); END""",
)

_POSTGRESQL = (
    *(
        statement
        for table in _TABLES
        for statement in (
            f"""CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE ON {table}
                FOR EACH ROW EXECUTE FUNCTION lmr_append_only()""",
            f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_no_change",
            f"""CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}
                FOR EACH STATEMENT EXECUTE FUNCTION lmr_append_only()""",
            f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_no_truncate",
        )
    ),
    """CREATE FUNCTION lmr_only_archived() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN
         IF TG_OP = 'UPDATE' OR OLD.seq > coalesce((SELECT archived_seq FROM runs WHERE run_id = OLD.run_id), 0)
           THEN RAISE EXCEPTION 'events is append-only'; END IF;
         RETURN OLD;
       END $$""",
    "DROP TRIGGER events_no_change ON events",
    """CREATE TRIGGER events_no_change BEFORE UPDATE OR DELETE ON events
       FOR EACH ROW EXECUTE FUNCTION lmr_only_archived()""",
    "ALTER TABLE events ENABLE ALWAYS TRIGGER events_no_change",
    """CREATE FUNCTION lmr_archive_sealed() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN
         IF NEW.archived_seq < OLD.archived_seq OR (NEW.archived_seq > OLD.archived_seq AND NOT EXISTS
           (SELECT 1 FROM seals WHERE run_id = NEW.run_id AND through_seq = NEW.archived_seq))
           THEN RAISE EXCEPTION 'only a sealed segment can be archived'; END IF;
         RETURN NEW;
       END $$""",
    """CREATE TRIGGER runs_archive_sealed BEFORE UPDATE OF archived_seq ON runs
       FOR EACH ROW EXECUTE FUNCTION lmr_archive_sealed()""",
    "ALTER TABLE runs ENABLE ALWAYS TRIGGER runs_archive_sealed",
)
