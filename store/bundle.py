"""Bundles: a run's log as one file, to hand over, to archive, to restore.

Line 1 is the header (what, which run, where it begins and ends, policies, epochs, seals, snapshots), then each record's
canonical body on a line of its own, then a trailer with the SHA-256 of all bytes before it. The hashes of the chain
follow from the bodies, so they need no place in the file. The same log always gives the same bytes, and what is
imported is byte for byte what was exported. A name that ends with `.gz` is compressed.
"""

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Connection, insert, select, update

from lmr.engine.canonical import canonical_bytes
from lmr.engine.record import Record, genesis_hash, open_record, record_hash
from lmr.engine.version import ENGINE_VERSION
from lmr.store.errors import BundleInvalid, HeadMoved, LogCorrupt
from lmr.store.head import Head
from lmr.store.log import EventLog
from lmr.store.migrate import HEAD
from lmr.store.redaction import Redaction
from lmr.store.restoring import restore_records
from lmr.store.schema import epochs, runs, seals, snapshots
from lmr.store.verify import verified_records
from lmr.store.writing import MAX_EVENT_BYTES

FORMAT = 1
MAX_HEADER_BYTES = 256 * 1024 * 1024
"""A header carries the snapshots. A longer line is none, and is not read into memory."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What a bundle says of itself, after all of it has been read and checked.

    `base` is where the records begin: seq 0 and the genesis hash, or the last record of an archived segment.
    """

    run_id: str
    schema: str
    engine: str
    base: Head
    head: Head
    events: int
    redacted: bool
    original: Head | None
    policies: list[dict[str, Any]]
    digest: str


def export_bundle(
    log: EventLog, run_id: str, path: Path, *, through_seq: int | None = None, redact: bool = False
) -> Bundle:
    """Write the run's records, verified on the way, to one file, which appears whole or not at all.

    Args:
        log: where the run is.
        run_id: the run.
        path: the file; `.gz` compresses it.
        through_seq: last record; None for all.
        redact: replace machines, addresses, people and free texts by stand-ins, the same one for the same thing.
            The records are chained anew; the header keeps the original head.

    Raises:
        LogCorrupt: the log does not verify.
    """
    head = log.head(run_id)
    through = head.seq if through_seq is None else through_seq
    with log.database.read() as connection:
        archived = connection.scalar(select(runs.c.archived_seq).where(runs.c.run_id == run_id)) or 0
    redaction = Redaction.of(_records(log, run_id, archived, through)) if redact else None
    first = next(_records(log, run_id, archived, through), None)
    base = Head(archived, genesis_hash(run_id) if first is None else first.prev_hash)
    header, ending = _header(log, run_id, base, through, redaction)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _writer(temporary, compress=path.suffix == ".gz") as file:
            digest = hashlib.sha256()
            for line in _lines(header, _bodies(log, run_id, archived, through, redaction)):
                digest.update(line)
                file.write(line)
            file.write(canonical_bytes({"lmr_bundle_end": {"sha256": digest.hexdigest()}}) + b"\n")
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    bundle = read_bundle(path)
    if ending is not None and bundle.head != ending:
        raise LogCorrupt(through, "the log changed while it was exported")
    return bundle


def read_bundle(path: Path) -> Bundle:
    """Read all of a bundle and check it.

    Raises:
        BundleInvalid: no bundle, a damaged one, or one of a newer format.
    """
    reader = _Reader(path)
    for _ in reader.bodies():
        pass
    return reader.bundle()


def bundle_records(path: Path) -> Iterator[Record]:
    """The records of a bundle, chained as the log had them; its digest is checked at the end.

    Raises:
        BundleInvalid: see `read_bundle`.
    """
    for body, prev_hash, hash_ in _Reader(path).bodies():
        yield open_record(body, prev_hash, hash_)


def import_bundle(log: EventLog, path: Path) -> Bundle:
    """Restore the bundle's run into the log, in one transaction. Importing the same again changes nothing.

    Raises:
        BundleInvalid: see `read_bundle`; nothing was written.
        HeadMoved: the log already has this run, with other records.
    """
    bundle = read_bundle(path)
    found = log.head(bundle.run_id)
    if found == bundle.head:
        return bundle
    if found.seq != 0:
        raise HeadMoved(bundle.run_id, 0, found.seq)
    reader = _Reader(path)
    with log.database.write() as connection:
        records = (open_record(*parts) for parts in reader.bodies())
        restore_records(log.database, connection, bundle.run_id, bundle.base, records)
        _restore_rest(connection, bundle, reader.header)
    return bundle


def _restore_rest(connection: Connection, bundle: Bundle, header: dict[str, Any]) -> None:
    run_id = bundle.run_id
    for row in header["snapshots"]:
        state = base64.b64decode(row["state"])
        connection.execute(insert(snapshots).values(**(row | {"run_id": run_id, "state": state})))
    for row in header["seals"]:
        connection.execute(insert(seals).values(**(row | {"run_id": run_id})))
    for row in header["epochs"]:
        connection.execute(insert(epochs).values(**(row | {"run_id": run_id})))
    newest = max((row["epoch"] for row in header["epochs"]), default=0)
    in_run = runs.c.run_id == run_id
    connection.execute(update(runs).where(in_run).values(archived_seq=bundle.base.seq))
    connection.execute(update(runs).where(in_run, runs.c.epoch < newest).values(epoch=newest))


def _header(
    log: EventLog, run_id: str, base: Head, through: int, redaction: Redaction | None
) -> tuple[dict[str, Any], Head | None]:
    """The header, and the head the bundle must end with (None: a redacted one ends elsewhere)."""
    policies: list[dict[str, Any]] = []
    last: Record | None = None
    for record in _records(log, run_id, base.seq, through):
        last = record
        if record.event.type in ("run_opened", "policy_changed"):
            policies.append({"seq": record.seq, "policy": record.event.to_json()["data"]["policy"]})
    ending = base if last is None else Head(last.seq, last.hash)
    with log.database.read() as connection:
        held = connection.execute(select(epochs).where(epochs.c.run_id == run_id).order_by(epochs.c.epoch)).all()
        sealed = connection.execute(select(seals).where(seals.c.run_id == run_id).order_by(seals.c.through_seq)).all()
        taken = connection.execute(
            select(snapshots).where(snapshots.c.run_id == run_id, snapshots.c.seq <= through).order_by(snapshots.c.seq)
        ).all()
    holders = [_without_run(row) for row in held]
    if redaction is not None:
        holders = [redaction.epoch(row) for row in holders]
    content = {
        "format": FORMAT,
        "run_id": run_id,
        "schema": HEAD,
        "engine": ENGINE_VERSION,
        "base": {"seq": base.seq, "hash": base.hash},
        "events": ending.seq - base.seq,
        "policies": policies,
        "epochs": holders,
        # Seals and snapshots are about the original records; a redacted bundle has others.
        "seals": [_without_run(row) for row in sealed if row.through_seq <= through] if redaction is None else [],
        "snapshots": [_encoded(_without_run(row)) for row in taken] if redaction is None else [],
        "redacted": redaction is not None,
        "original": None if redaction is None else {"seq": ending.seq, "hash": ending.hash},
    }
    return content, ending if redaction is None else None


def _bodies(log: EventLog, run_id: str, after: int, through: int, redaction: Redaction | None) -> Iterator[bytes]:
    for record in _records(log, run_id, after, through):
        yield record.body if redaction is None else redaction.body(record)


def _records(log: EventLog, run_id: str, after: int, through: int) -> Iterator[Record]:
    for record in verified_records(log, run_id, after):
        if record.seq > through:
            return
        yield record


def _lines(header: dict[str, Any], bodies: Iterator[bytes]) -> Iterator[bytes]:
    yield canonical_bytes({"lmr_bundle": header}) + b"\n"
    for body in bodies:
        yield body + b"\n"


class _Reader:
    """One pass over a bundle's file; `header` and `bundle` are there after it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.header: dict[str, Any] = {}
        self._head = Head(0, "")
        self._digest = ""

    def bodies(self) -> Iterator[tuple[bytes, str, str]]:
        """Each record's body, prev_hash and hash."""
        digest = hashlib.sha256()
        with _reader(self._path) as file:
            try:
                first = file.readline(MAX_HEADER_BYTES)
                self.header = self._checked_header(first)
                digest.update(first)
                seq, hash_ = self.header["base"]["seq"], self.header["base"]["hash"]
                for _ in range(self.header["events"]):
                    line = file.readline(MAX_EVENT_BYTES + 1)
                    digest.update(line)
                    body = line[:-1]
                    seq += 1
                    if not line.endswith(b"\n") or f'"seq":{seq},'.encode() not in body:
                        raise BundleInvalid(f"{self._path}: record {seq} is missing or cut")
                    prev_hash, hash_ = hash_, record_hash(hash_, body)
                    yield body, prev_hash, hash_
                self._digest = digest.hexdigest()
                if file.readline() != canonical_bytes({"lmr_bundle_end": {"sha256": self._digest}}) + b"\n":
                    raise BundleInvalid(f"{self._path}: the digest is not that of the content, or the file is cut")
                if file.read(1):
                    raise BundleInvalid(f"{self._path}: something follows the end")
            except (OSError, EOFError) as error:
                raise BundleInvalid(f"{self._path}: {error}") from error
        self._head = Head(seq, hash_)

    def bundle(self) -> Bundle:
        """What was read."""
        header = self.header
        original = header["original"]
        return Bundle(
            header["run_id"],
            header["schema"],
            header["engine"],
            Head(**header["base"]),
            self._head,
            header["events"],
            header["redacted"],
            None if original is None else Head(**original),
            header["policies"],
            self._digest,
        )

    def _checked_header(self, line: bytes) -> dict[str, Any]:
        try:
            header = json.loads(line)["lmr_bundle"]
            format_ = header["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise BundleInvalid(f"{self._path}: not a bundle") from error
        if format_ != FORMAT:
            raise BundleInvalid(f"{self._path}: bundle format {format_}; this version reads {FORMAT}")
        return dict(header)


def _without_run(row: Any) -> dict[str, Any]:
    return {str(name): value for name, value in row._asdict().items() if name != "run_id"}


def _encoded(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"state": base64.b64encode(bytes(row["state"])).decode("ascii")}


@contextmanager
def _writer(path: Path, *, compress: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as file:
        if compress:
            # No name and no time inside: the same log gives the same bytes.
            with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                yield packed  # type: ignore[misc]
        else:
            yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _reader(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise BundleInvalid(f"{path}: {error.strerror or error}") from error
    with file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            yield file


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
