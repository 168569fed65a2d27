"""Does the stored log hold together? Every record is rehashed, in constant memory.

The chain shows any change inside the log. It cannot show a cut tail, or a log rewritten from some record on by somebody
who may also rewrite the head: for that there are anchors, head hashes that were noted elsewhere (restart contexts,
checkpoint manifests, agents' logs).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from pydantic_core import from_json
from sqlalchemy import bindparam, select

from lmr.engine.record import Record, genesis_hash, open_record, record_hash
from lmr.store.errors import LogCorrupt, SegmentArchived
from lmr.store.log import EventLog
from lmr.store.schema import events, runs, seals, snapshots
from lmr.store.sealing import root_hash

_PAGE_ROWS = 2_000
_COLUMNS = ("seq", "type", "at_ms", "source", "event_id", "version", "recorded_at_ms", "epoch")

_said_columns = itemgetter(*_COLUMNS)
_page = (
    select(*(events.c[name] for name in (*_COLUMNS, "body", "prev_hash", "hash")))
    .where(events.c.run_id == bindparam("run"), events.c.seq > bindparam("after"))
    .order_by(events.c.seq)
    .limit(_PAGE_ROWS)
)


@dataclass(frozen=True, slots=True)
class Fault:
    """The first record at fault, and what is wrong with it."""

    seq: int
    what: str


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What `verify_chain` found. `fault` is None when everything holds; `events` counts the good records before it."""

    run_id: str
    archived_through: int
    events: int
    head_seq: int
    head_hash: str
    seals: int
    snapshots: int
    fault: Fault | None


def verify_chain(log: EventLog, run_id: str, anchors: Sequence[tuple[int, str]] = ()) -> ChainReport:
    """Check every record, the head, seals and snapshots, and the anchors (seq, hash) noted elsewhere.

    Records that were archived are vouched for by their seal; verify the archive itself to look inside.
    """
    start = check_seals(log, run_id)
    walk = _Walk(run_id, start.archived_seq, start.prev_hash)
    fault = start.fault
    try:
        if fault is None:
            for _ in walk.rows(log):
                pass
            fault = _ending(log, run_id, walk) or check_anchors(log, run_id, anchors)
    except LogCorrupt as error:
        fault = Fault(error.seq, error.what)
    return ChainReport(run_id, start.archived_seq, walk.count, walk.seq, walk.hash, start.seals, start.snapshots, fault)


def verified_records(log: EventLog, run_id: str, after: int = 0) -> Iterator[Record]:
    """The records behind `after`, each one checked before it is handed out, and the head at the end.

    Raises:
        LogCorrupt: naming the first record at fault.
        SegmentArchived: the records behind `after` were moved to an archive.
    """
    start = check_seals(log, run_id)
    if start.fault is not None:
        raise LogCorrupt(start.fault.seq, start.fault.what)
    if after < start.archived_seq:
        raise SegmentArchived(run_id, start.archived_seq)
    prev_hash = start.prev_hash if after == start.archived_seq else _hash_at(log, run_id, after)
    if prev_hash is None:
        raise LogCorrupt(after, "the record is missing")
    walk = _Walk(run_id, after, prev_hash)
    for row in walk.rows(log):
        yield open_record(bytes(row.body), row.prev_hash, row.hash)
    fault = _ending(log, run_id, walk)
    if fault is not None:
        raise LogCorrupt(fault.seq, fault.what)


def check_anchors(log: EventLog, run_id: str, anchors: Iterable[tuple[int, str]]) -> Fault | None:
    """The first sign that the log is not the one the anchors were noted from: a cut tail or a rewritten history.

    A rewritten history is named by the first seq it can have begun at: behind the last anchor that agrees.
    """
    agreed = 0
    for seq, noted in sorted(set(anchors)):
        found = genesis_hash(run_id) if seq == 0 else _hash_at(log, run_id, seq) or _sealed_hash(log, run_id, seq)
        head = log.head(run_id).seq
        if found is None and seq > head:
            return Fault(head + 1, f"the tail is cut: the log ends at {head}, but {seq} had been recorded")
        if found is None:
            continue  # archived: the seal behind it vouches for it
        if found != noted:
            return Fault(
                agreed + 1, f"rewritten between {agreed + 1} and {seq}: the hash at {seq} is not the noted one"
            )
        agreed = seq
    return None


class _Walk:
    """The chain as far as it has been followed."""

    def __init__(self, run_id: str, after: int, prev_hash: str) -> None:
        self.run_id = run_id
        self.seq = after
        self.hash = prev_hash
        self.count = 0
        self._recorded_at_ms = 0
        self._epoch = 0

    def rows(self, log: EventLog) -> Iterator[Any]:
        """The rows, each after it has been checked.

        Raises:
            LogCorrupt: at the first one that is wrong.
        """
        while True:
            with log.database.read() as connection:
                page = connection.execute(_page, {"run": self.run_id, "after": self.seq}).fetchall()
            for row in page:
                self._check(row)
                yield row
            if len(page) < _PAGE_ROWS:
                return

    def _check(self, row: Any) -> None:
        columns, (body, prev_hash, hash_) = row[: len(_COLUMNS)], row[len(_COLUMNS) :]
        seq = self.seq + 1
        if columns[0] != seq:
            raise LogCorrupt(seq, "the record is missing")
        if prev_hash != self.hash:
            raise LogCorrupt(seq, "does not chain to the record before it")
        if not isinstance(body, bytes):
            raise LogCorrupt(seq, "the stored body is not bytes")
        if hash_ != record_hash(prev_hash, body):
            raise LogCorrupt(seq, "the hash is not that of the stored bytes")
        try:
            said = from_json(body, cache_strings="keys")
        except ValueError as error:
            raise LogCorrupt(seq, "the stored bytes are not JSON") from error
        if not _says(said, columns):
            name = next(name for name in _COLUMNS if said.get(name) != getattr(row, name))
            raise LogCorrupt(seq, f"column {name} does not say what the stored bytes say")
        if said.get("run_id") != self.run_id:
            raise LogCorrupt(seq, "the record belongs to another run")
        recorded_at_ms, epoch = columns[-2:]
        if recorded_at_ms < self._recorded_at_ms or epoch < self._epoch:
            raise LogCorrupt(seq, "recorded time or epoch goes back")
        self.seq, self.hash = seq, hash_
        self._recorded_at_ms, self._epoch = recorded_at_ms, epoch
        self.count += 1


def _says(said: dict[str, Any], columns: tuple[Any, ...]) -> bool:
    try:
        return bool(_said_columns(said) == columns)
    except KeyError:
        return False


@dataclass(frozen=True, slots=True)
class SealReport:
    """Where the stored records begin: behind `archived_seq`, chained to `prev_hash`; and whether the seals hold."""

    archived_seq: int
    prev_hash: str
    seals: int
    snapshots: int
    fault: Fault | None


def check_seals(log: EventLog, run_id: str) -> SealReport:
    """Where the stored records begin; the seals checked, and the snapshots against the records they were taken at."""
    with log.database.read() as connection:
        archived = connection.scalar(select(runs.c.archived_seq).where(runs.c.run_id == run_id)) or 0
        sealed = connection.execute(select(seals).where(seals.c.run_id == run_id).order_by(seals.c.through_seq)).all()
        taken = connection.execute(
            select(snapshots.c.seq, snapshots.c.hash, events.c.hash.label("recorded"))
            .select_from(
                snapshots.outerjoin(events, (events.c.run_id == snapshots.c.run_id) & (events.c.seq == snapshots.c.seq))
            )
            .where(snapshots.c.run_id == run_id)
            .order_by(snapshots.c.seq)
        ).all()
    prev_hash = genesis_hash(run_id)
    fault = None
    root = ""
    for seal in sealed:
        root = root_hash(run_id, seal.through_seq, seal.hash, seal.state_digest, root)
        if seal.root_hash != root:
            fault = fault or Fault(seal.through_seq, "the seal's root hash is wrong")
        if seal.through_seq > archived and _hash_at(log, run_id, seal.through_seq) != seal.hash:
            fault = fault or Fault(seal.through_seq, "the record is not the one that was sealed")
        if seal.through_seq == archived:
            prev_hash = seal.hash
    if archived and prev_hash == genesis_hash(run_id):
        fault = fault or Fault(archived, "archived without a seal")
    for snapshot in taken:
        if snapshot.recorded != snapshot.hash and snapshot.seq > archived:
            fault = fault or Fault(snapshot.seq, "the record is not the one the snapshot was taken at")
    return SealReport(archived, prev_hash, len(sealed), len(taken), fault)


def _ending(log: EventLog, run_id: str, walk: _Walk) -> Fault | None:
    """Whether the head is where the walk ended. Records that came meanwhile are not at fault."""
    head = log.head(run_id)
    if head.seq > walk.seq and _hash_at(log, run_id, walk.seq + 1) is None:
        return Fault(walk.seq + 1, f"the tail is cut: the head stands at {head.seq}")
    if head.seq < walk.seq:
        return Fault(head.seq + 1, f"records behind the head, which stands at {head.seq}")
    if head.seq == walk.seq and head.hash != walk.hash:
        return Fault(head.seq, "the head's hash is not the last record's")
    return None


def _sealed_hash(log: EventLog, run_id: str, seq: int) -> str | None:
    with log.database.read() as connection:
        return connection.scalar(select(seals.c.hash).where(seals.c.run_id == run_id, seals.c.through_seq == seq))


def _hash_at(log: EventLog, run_id: str, seq: int) -> str | None:
    with log.database.read() as connection:
        return connection.scalar(select(events.c.hash).where(events.c.run_id == run_id, events.c.seq == seq))
