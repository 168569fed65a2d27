"""The store room: every fact and decision of a run, in SQL, in order, tamper-evident.

    open_log(URL or path) -> EventLog
        |
        |  with log.writing(run, epoch=E, writer=W) as tx:     one transaction
        |      lock the head row, check epoch and writer       (BEGIN IMMEDIATE / FOR UPDATE)
        |      tx.append(event, id) ... tx.append(decision)    seq = head + 1, hash = H(prev_hash, body)
        |      insert the rows, move the head, commit
        v
    runs    one row a run: head seq and hash, epoch, lease
    events  (run_id, seq) dense, event_id unique, body = canonical bytes; UPDATE and DELETE refused
    epochs  who wrote under which epoch

SQLite (`sqlite.py`) and PostgreSQL (`postgresql.py`) differ in one small file each; everything else is written once.
"""

from lmr.store.errors import (
    BundleInvalid,
    ConnectionLost,
    EpochFenced,
    EventRefused,
    ForeignDatabase,
    HeadMoved,
    IdConflict,
    LogCorrupt,
    LogReadOnly,
    LogUnavailable,
    SchemaNewer,
    SchemaOlder,
    SegmentArchived,
    StoreError,
)
from lmr.store.head import Head, Lease
from lmr.store.log import EventLog
from lmr.store.opening import open_log
from lmr.store.writing import Writing

__all__ = [
    "BundleInvalid",
    "ConnectionLost",
    "EpochFenced",
    "EventLog",
    "EventRefused",
    "ForeignDatabase",
    "Head",
    "HeadMoved",
    "IdConflict",
    "Lease",
    "LogCorrupt",
    "LogReadOnly",
    "LogUnavailable",
    "SchemaNewer",
    "SchemaOlder",
    "SegmentArchived",
    "StoreError",
    "Writing",
    "open_log",
]
