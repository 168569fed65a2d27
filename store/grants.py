"""Roles on PostgreSQL. Triggers stop mistakes; they do not stop a table's owner, who can drop them.

So the agents' role owns nothing: it may read, add, and move heads. Auditors may read. The owner, who migrates and
archives, is used for nothing else.
"""

from lmr.store.schema import AUDIT_VIEWS, VERSION_TABLE, metadata

_MOVED = "head_seq, head_hash, recorded_at_ms, epoch, lease_holder, lease_address, lease_expires_at_ms"


def grants(*, schema: str, writer: str, auditor: str) -> list[str]:
    """The owner's statements that give the two roles what they need and no more.

    Args:
        schema: where the log is, as `public`.
        writer: role of the agents.
        auditor: role of people and tools that only read.
    """
    tables = [table.name for table in metadata.sorted_tables]
    everything = ", ".join(f"{_name(schema)}.{_name(name)}" for name in (*tables, VERSION_TABLE, *AUDIT_VIEWS))
    added = ", ".join(
        f"{_name(schema)}.{_name(name)}"
        for name in tables
        if name != "archived_ids"  # archiving is the owner's
    )
    return [
        f"GRANT USAGE ON SCHEMA {_name(schema)} TO {_name(writer)}, {_name(auditor)}",
        f"GRANT SELECT ON {everything} TO {_name(writer)}, {_name(auditor)}",
        f"GRANT INSERT ON {added} TO {_name(writer)}",
        f"GRANT UPDATE ({_MOVED}) ON {_name(schema)}.runs TO {_name(writer)}",
    ]


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
