"""Bundles as a source and as an output."""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lmr.engine.errors import StateUnreadable
from lmr.engine.record import Record
from lmr.engine.state import State
from lmr.engine.state_bytes import state_of
from lmr.engine.version import ENGINE_VERSION
from lmr.replay_tool.database import clause
from lmr.replay_tool.errors import LogBroken, Unreadable, Usage
from lmr.replay_tool.keeping import keep_records, open_for_import
from lmr.replay_tool.source import Log
from lmr.store import BundleInvalid, StoreError
from lmr.store.bundle import MAX_HEADER_BYTES, bundle_records, export_bundle, import_bundle
from lmr.store.sealing import state_digest

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class OpenBundle:
    """A bundle that is read from the front, as often as wanted, in constant memory."""

    runs: list[str]
    length: int
    notes: tuple[str, ...]
    beginning: Callable[[], State]
    snapshots: dict[int, str]
    records: Callable[[int], Iterator[Record]]


def is_bundle(path: Path) -> bool:
    """True when the file begins as a bundle does, compressed or not."""
    try:
        return _first_line(path, 64).startswith(b'{"lmr_bundle":')
    except (OSError, EOFError):
        return False


def _first_line(path: Path, size: int = MAX_HEADER_BYTES) -> bytes:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
    with gzip.open(path, "rb") if packed else path.open("rb") as file:
        return file.readline(size)


def open_bundle(path: Path) -> OpenBundle:
    """The bundle at `path`.

    Raises:
        Unreadable: it is damaged or of another format.
    """
    try:
        header = json.loads(_first_line(path))["lmr_bundle"]
        run, length, redacted, base = (
            header["run_id"],
            int(header["events"]),
            bool(header["redacted"]),
            header["base"]["seq"],
        )
        snapshots = {item["seq"]: item for item in header["snapshots"]}
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise Unreadable(str(path), "a bundle whose header cannot be read") from error
    notes: tuple[str, ...] = ()
    if redacted:
        notes += ("the bundle is redacted: names and addresses are stand-ins",)
    if base:
        notes += (f"begins at seq {base + 1}: the state sealed with the records before stands for them",)

    def beginning() -> State:
        if not base:
            return State()
        sealed = {item["through_seq"]: item["state_digest"] for item in header["seals"]}
        kept = snapshots.get(base)
        if kept is None or redacted:
            raise Unreadable(str(path), f"begins at seq {base + 1}, and the state before it is not in the bundle")
        state = base64.b64decode(kept["state"])
        if (
            not kept["state_digest"] == sealed.get(base) == state_digest(state)
            or kept["hash"] != header["base"]["hash"]
        ):
            raise LogBroken(str(path), base, "the state the bundle begins with is not the one that was sealed")
        try:
            return state_of(state)
        except StateUnreadable as error:
            raise Unreadable(str(path), f"the state it begins with: {error}") from error

    def read(after: int) -> Iterator[Record]:
        if after < base:
            why = f"an archived segment that begins at seq {base + 1}; its decisions need what was before"
            raise Unreadable(str(path), why)
        try:
            yield from (record for record in bundle_records(path) if record.seq > after)
        except BundleInvalid as error:
            raise Unreadable(str(path), str(error).removeprefix(f"{path}: ")) from error

    kept = {seq: item["state_digest"] for seq, item in snapshots.items() if item["engine"] == ENGINE_VERSION}
    return OpenBundle([run], length, notes, beginning, {} if redacted else kept, read)


def write_bundle(log: Log, output: Path, *, redact: bool) -> int:
    """Writes `log` as a bundle; returns the number of records.

    Raises:
        Unreadable: the log does not verify.
        Usage: the file cannot be written.
    """
    try:
        if log.kind == "database":
            return _from_database(log.address, log.run_id, output, redact)
        # A bundle is made from a database: what came from a file goes through one that is thrown away.
        with tempfile.TemporaryDirectory() as folder:
            address = str(Path(folder) / "events.db")
            keep_records(log.records(), address)
            return _from_database(address, log.run_id, output, redact)
    except OSError as error:
        raise Usage(f"{output}: cannot be written: {(error.strerror or str(error)).lower()}") from error


def _from_database(address: str, run_id: str, output: Path, redact: bool) -> int:
    from lmr.store import open_log

    try:
        source = open_log(address, create=False, read_only=True)
    except StoreError as error:
        raise Unreadable(address, clause(error, address)) from error
    try:
        return export_bundle(source, run_id, output, redact=redact).events
    except StoreError as error:
        raise Unreadable(address, clause(error, address)) from error
    finally:
        source.close()


def restore_bundle(path: Path, into: str) -> tuple[str, int]:
    """Imports a bundle into a database; returns run and number of records.

    Raises:
        Unreadable: the bundle is damaged, or the database is not ours or has this run with other records.
    """
    target = open_for_import(into)
    try:
        found = import_bundle(target, path)
        return found.run_id, found.events
    except StoreError as error:
        raise Unreadable(str(path), clause(error, str(path))) from error
    finally:
        target.close()
