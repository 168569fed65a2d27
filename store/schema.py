"""The tables of the log, once for both dialects. What changes them is a migration; this is what the queries use.

Everything an event says is in `body`, the canonical bytes that are hashed. The other columns of `events` repeat parts
of it so that SQL can select and order by them; the verifier checks that they agree.
"""

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("head_seq", BigInteger, nullable=False),
    Column("head_hash", Text, nullable=False),
    Column("recorded_at_ms", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("lease_holder", Text),
    Column("lease_address", Text),
    Column("lease_expires_at_ms", BigInteger),
    Column("archived_seq", BigInteger, nullable=False, server_default="0"),
)
"""One row a run: the head that appends lock, and the lease of the one writer."""

epochs = Table(
    "epochs",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("epoch", BigInteger, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("acquired_at_ms", BigInteger, nullable=False),
)
"""Who wrote under which epoch; append-only."""

events = Table(
    "events",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("event_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("source", Text, nullable=False),
    Column("recorded_at_ms", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("prev_hash", Text, nullable=False),
    Column("hash", Text, nullable=False),
)
"""The log itself; append-only. UNIQUE(run_id, event_id) besides the key."""

snapshots = Table(
    "snapshots",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("hash", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("state_digest", Text, nullable=False),
    Column("state", LargeBinary, nullable=False),
    Column("taken_at_ms", BigInteger, nullable=False),
)
"""Folded states, so that a reader need not begin at 1; append-only."""

seals = Table(
    "seals",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("through_seq", BigInteger, primary_key=True),
    Column("hash", Text, nullable=False),
    Column("state_digest", Text, nullable=False),
    Column("root_hash", Text, nullable=False),
    Column("sealed_at_ms", BigInteger, nullable=False),
)
"""Segments closed by a snapshot; `runs.archived_seq` is the last whose records have left. Append-only."""

archived_ids = Table(
    "archived_ids",
    metadata,
    Column("run_id", Text, primary_key=True),
    Column("event_id", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("payload_digest", LargeBinary, nullable=False),
)
"""What a late retry of an archived event is compared with; append-only."""

AUDIT_VIEWS = (
    "audit_events",
    "audit_plans",
    "audit_rejected",
    "audit_evidence",
    "audit_incident_nodes",
    "audit_incidents",
    "audit_recovery_times",
    "audit_membership",
    "audit_checkpoints",
)
"""Views for people and tools that audit; same columns on both dialects (docs/audit.md)."""

VERSION_TABLE = "lmr_schema"
"""Where the revision of the schema stands: one row, column `version_num`."""
