"""Errors of the event log, named by whose fault it is."""


class StoreError(Exception):
    """Base of every error the store raises."""


class LogUnavailable(StoreError):
    """The database cannot be opened, reached or written now; nothing was half written.

    A commit that was under way when the connection broke may or may not have happened: append the same event ids again.
    """


class ConnectionLost(LogUnavailable):
    """The server went away; the next call connects anew."""


class LogReadOnly(StoreError):
    """The log was opened to be read, or its database (a replica, a read-only file or role) takes no writes."""


class ForeignDatabase(StoreError):
    """The database holds something that is not an event log of ours; it was not touched."""


class SchemaNewer(StoreError):
    """The log was written by a newer version of this software; it was not touched."""


class SchemaOlder(StoreError):
    """The log has an older schema and needs `lmr db upgrade`; it was not touched."""


class LogCorrupt(StoreError):
    """The stored log does not hold together.

    Attributes:
        seq: the first record at fault.
        what: what is wrong with it.
    """

    def __init__(self, seq: int, what: str) -> None:
        super().__init__(f"log corrupt at seq {seq}: {what}")
        self.seq = seq
        self.what = what


class SegmentArchived(StoreError):
    """The records asked for were sealed and moved to an archive; read on from the snapshot.

    Attributes:
        through_seq: the last archived record.
    """

    def __init__(self, run_id: str, through_seq: int) -> None:
        super().__init__(
            f"run {run_id}: records 1 to {through_seq} are sealed and archived; start from the snapshot at "
            f"{through_seq}, or read the archive"
        )
        self.through_seq = through_seq


class EventRefused(StoreError):
    """An event no database could keep, or larger than the limit.

    Attributes:
        event_id: the id it was appended under.
    """

    def __init__(self, event_id: str, why: str) -> None:
        super().__init__(f"event {event_id!r}: {why}")
        self.event_id = event_id


class IdConflict(StoreError):
    """The event id is already taken by an event that says something else.

    Attributes:
        event_id: the id.
        seq: the record that has it.
    """

    def __init__(self, event_id: str, seq: int) -> None:
        super().__init__(f"event id {event_id!r} already names another event, seq {seq}")
        self.event_id = event_id
        self.seq = seq


class EpochFenced(StoreError):
    """Another writer has taken the run over; this one must stop deciding.

    Attributes:
        run_id: the run.
        epoch: what this writer claimed.
        current: the epoch that holds now.
    """

    def __init__(self, run_id: str, epoch: int, writer: str, current: int, holder: str | None) -> None:
        super().__init__(
            f"run {run_id}: writer {writer!r} claims epoch {epoch}, but epoch {current} belongs to "
            f"{holder if holder is not None else 'nobody'!r}"
        )
        self.run_id = run_id
        self.epoch = epoch
        self.current = current


class HeadMoved(StoreError):
    """The log's head is not where the caller expected it.

    Attributes:
        expected: seq the caller expected.
        found: seq of the head.
    """

    def __init__(self, run_id: str, expected: int, found: int) -> None:
        super().__init__(f"run {run_id}: expected head {expected}, found {found}")
        self.expected = expected
        self.found = found


class BundleInvalid(StoreError):
    """The file is no bundle, a damaged one, or one of a newer format."""
