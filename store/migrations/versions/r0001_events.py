"""The log: events, the head of each run, who wrote under which epoch; append-only by triggers.

Revision ID: 0001
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the three tables and what keeps them append-only."""
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("head_seq", sa.BigInteger, nullable=False),
        sa.Column("head_hash", sa.Text, nullable=False),
        sa.Column("recorded_at_ms", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("lease_holder", sa.Text),
        sa.Column("lease_address", sa.Text),
        sa.Column("lease_expires_at_ms", sa.BigInteger),
    )
    op.create_table(
        "epochs",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("acquired_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "epoch"),
    )
    op.create_table(
        "events",
        sa.Column("run_id", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("event_id", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("recorded_at_ms", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("prev_hash", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq", name="events_seq"),
        sa.UniqueConstraint("run_id", "event_id", name="events_event_id"),
        sa.CheckConstraint("seq >= 1", name="events_from_one"),
    )
    connection = op.get_bind()
    for statement in _SQLITE if connection.dialect.name == "sqlite" else _POSTGRESQL:
        connection.exec_driver_sql(statement)


_SQLITE = (
    """CREATE TRIGGER events_no_update BEFORE UPDATE ON events
       BEGIN SELECT RAISE(ABORT, 'events is append-only'); END""",
    """CREATE TRIGGER events_no_delete BEFORE DELETE ON events
       BEGIN SELECT RAISE(ABORT, 'events is append-only'); END""",
    # INSERT OR REPLACE deletes without firing the trigger above, unless recursive_triggers is on.
    """CREATE TRIGGER events_behind_head BEFORE INSERT ON events
       WHEN NEW.seq <= (SELECT head_seq FROM runs WHERE run_id = NEW.run_id)
       BEGIN SELECT RAISE(ABORT, 'events is append-only'); END""",
    """CREATE TRIGGER epochs_no_update BEFORE UPDATE ON epochs
       BEGIN SELECT RAISE(ABORT, 'epochs is append-only'); END""",
    """CREATE TRIGGER epochs_no_delete BEFORE DELETE ON epochs
       BEGIN SELECT RAISE(ABORT, 'epochs is append-only'); END""",
    """CREATE TRIGGER runs_only_forward BEFORE UPDATE ON runs
       WHEN NEW.run_id <> OLD.run_id OR NEW.head_seq < OLD.head_seq OR NEW.epoch < OLD.epoch
         OR NEW.recorded_at_ms < OLD.recorded_at_ms
       BEGIN SELECT RAISE(ABORT, 'a head only moves forward'); END""",
    """CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs
       BEGIN SELECT RAISE(ABORT, 'runs is append-only'); END""",
)

_POSTGRESQL = (
    """CREATE FUNCTION lmr_append_only() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' is append-only'; END $$""",
    """CREATE FUNCTION lmr_only_forward() RETURNS trigger LANGUAGE plpgsql AS
       $$ BEGIN
         IF NEW.run_id <> OLD.run_id OR NEW.head_seq < OLD.head_seq OR NEW.epoch < OLD.epoch
           OR NEW.recorded_at_ms < OLD.recorded_at_ms THEN RAISE EXCEPTION 'a head only moves forward'; END IF;
         RETURN NEW;
       END $$""",
    *(
        statement
        for table in ("events", "epochs")
        for statement in (
            f"""CREATE TRIGGER {table}_no_change BEFORE UPDATE OR DELETE ON {table}
                FOR EACH ROW EXECUTE FUNCTION lmr_append_only()""",
            f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_no_change",
        )
    ),
    "CREATE TRIGGER runs_only_forward BEFORE UPDATE ON runs FOR EACH ROW EXECUTE FUNCTION lmr_only_forward()",
    "ALTER TABLE runs ENABLE ALWAYS TRIGGER runs_only_forward",
    "CREATE TRIGGER runs_no_delete BEFORE DELETE ON runs FOR EACH ROW EXECUTE FUNCTION lmr_append_only()",
    "ALTER TABLE runs ENABLE ALWAYS TRIGGER runs_no_delete",
    *(
        statement
        for table in ("events", "epochs", "runs")
        for statement in (
            f"""CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}
                FOR EACH STATEMENT EXECUTE FUNCTION lmr_append_only()""",
            f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_no_truncate",
        )
    ),
)
