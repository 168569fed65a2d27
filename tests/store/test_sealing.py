"""Snapshots, seals and the archive."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from store_samples import batch, captured
from store_tamper import unguarded

from lmr.engine.record import Record
from lmr.store import EventLog, IdConflict, LogCorrupt, SegmentArchived
from lmr.store.bundle import bundle_records, export_bundle, import_bundle, read_bundle
from lmr.store.opening import open_log
from lmr.store.sealing import (
    NotSealable,
    archive_segment,
    check_snapshot,
    newest_snapshot,
    save_snapshot,
    seal_segment,
)
from lmr.store.verify import verified_records, verify_chain


def fold(records: Iterator[Record]) -> bytes:
    """A state for these tests: how many records there were, and which."""
    digest = hashlib.sha256()
    count = 0
    for record in records:
        digest.update(record.body)
        count += 1
    return f"{count} {digest.hexdigest()}".encode()


def test_a_snapshot_is_kept_and_found(log: EventLog) -> None:
    added = log.append("r", batch(10))
    save_snapshot(log, "r", 4, b"four", engine="0.1.0")
    taken = save_snapshot(log, "r", 8, b"eight", engine="0.1.0")
    assert (taken.seq, taken.hash, taken.state) == (8, added[7].hash, b"eight")
    assert newest_snapshot(log, "r") == taken
    older = newest_snapshot(log, "r", at_most=7)
    assert older is not None
    assert older.state == b"four"
    assert newest_snapshot(log, "r", at_most=3) is None
    assert save_snapshot(log, "r", 8, b"eight", engine="0.1.0") == taken


def test_two_states_at_one_seq_are_an_error(log: EventLog) -> None:
    log.append("r", batch(3))
    save_snapshot(log, "r", 2, b"one", engine="0.1.0")
    with pytest.raises(LogCorrupt, match="deterministic"):
        save_snapshot(log, "r", 2, b"other", engine="0.1.0")


def test_a_snapshot_needs_its_record(log: EventLog) -> None:
    log.append("r", batch(3))
    with pytest.raises(LogCorrupt):
        save_snapshot(log, "r", 4, b"state", engine="0.1.0")


def test_a_snapshot_is_checked_against_a_full_replay(log: EventLog) -> None:
    log.append("r", batch(10))
    good = save_snapshot(log, "r", 6, fold(log.read("r", 0, 6)), engine="0.1.0")
    check_snapshot(log, good, fold)
    bad = save_snapshot(log, "r", 7, fold(log.read("r", 0, 6)), engine="0.1.0")
    with pytest.raises(LogCorrupt) as caught:
        check_snapshot(log, bad, fold)
    assert caught.value.seq == 7


def test_a_damaged_snapshot_is_not_handed_out(log: EventLog) -> None:
    log.append("r", batch(3))
    save_snapshot(log, "r", 2, b"state", engine="0.1.0")
    with unguarded(log) as connection:
        connection.execute(text("UPDATE snapshots SET state = :s"), {"s": b"forged"})
    with pytest.raises(LogCorrupt):
        newest_snapshot(log, "r")


class TestArchive:
    """Old records leave from the front, sealed; what is left still verifies."""

    def test_verify_and_append_go_on_across_a_seal(self, log: EventLog, tmp_path: Path) -> None:
        archive, before = self._archive(log, tmp_path)
        report = verify_chain(log, "r", anchors=[(2, "not checked here"), (9, before[8].hash)])
        assert (report.fault, report.archived_through, report.events, report.seals) == (None, 6, 4, 1)
        assert list(log.read("r", after=6)) == before[6:]
        assert list(verified_records(log, "r", after=6)) == before[6:]
        assert list(verified_records(log, "r", after=8)) == before[8:]
        assert list(bundle_records(archive)) == before[:6]
        assert log.append("r", batch(12))[0].seq == 11
        assert verify_chain(log, "r").fault is None

    def test_archived_records_are_said_to_be_archived_not_lost(self, log: EventLog, tmp_path: Path) -> None:
        self._archive(log, tmp_path)
        for read in (log.read("r"), log.read("r", after=5), verified_records(log, "r")):
            with pytest.raises(SegmentArchived) as caught:
                list(read)
            assert caught.value.through_seq == 6

    def test_a_late_retry_of_an_archived_event_is_still_recognised(self, log: EventLog, tmp_path: Path) -> None:
        self._archive(log, tmp_path)
        assert log.append("r", batch(10)) == []
        with pytest.raises(IdConflict) as caught:
            log.append("r", [("node-1/life/2", captured(99))])
        assert caught.value.seq == 2

    def test_a_second_segment_follows_the_first(self, log: EventLog, tmp_path: Path) -> None:
        self._archive(log, tmp_path)
        save_snapshot(log, "r", 9, b"nine", engine="0.1.0")
        seal_segment(log, "r", 9)
        archive_segment(log, "r", 9, tmp_path / "second.bundle")
        assert read_bundle(tmp_path / "second.bundle").base.seq == 6
        report = verify_chain(log, "r")
        assert (report.fault, report.archived_through, report.seals) == (None, 9, 2)

    def test_nothing_leaves_without_a_seal(self, log: EventLog, tmp_path: Path) -> None:
        log.append("r", batch(10))
        with pytest.raises(NotSealable):
            seal_segment(log, "r", 6)
        save_snapshot(log, "r", 6, b"six", engine="0.1.0")
        with pytest.raises(NotSealable):
            archive_segment(log, "r", 6, tmp_path / "a.bundle")
        assert not (tmp_path / "a.bundle").exists()
        assert len(list(log.read("r"))) == 10

    def test_a_tampered_segment_is_not_archived(self, log: EventLog, tmp_path: Path) -> None:
        log.append("r", batch(10))
        save_snapshot(log, "r", 6, b"six", engine="0.1.0")
        seal_segment(log, "r", 6)
        with unguarded(log) as connection:
            connection.execute(text("UPDATE events SET source = 'x' WHERE seq = 3"))
        with pytest.raises(LogCorrupt):
            archive_segment(log, "r", 6, tmp_path / "a.bundle")
        assert log.database is not None
        with log.database.read() as connection:
            assert connection.scalar(text("SELECT count(*) FROM events")) == 10

    @pytest.mark.parametrize("column", ["root_hash", "hash", "state_digest"])
    def test_a_forged_seal_is_found(self, log: EventLog, tmp_path: Path, column: str) -> None:
        self._archive(log, tmp_path)
        with unguarded(log) as connection:
            connection.execute(text(f"UPDATE seals SET {column} = '{'0' * 64}'"))
        fault = verify_chain(log, "r").fault
        assert fault is not None
        assert fault.seq == 6

    def test_deleting_in_the_middle_stays_refused(self, log: EventLog, tmp_path: Path) -> None:
        self._archive(log, tmp_path)
        with pytest.raises(Exception, match="append-only"), log.database.write() as connection:
            connection.execute(text("DELETE FROM events WHERE seq = 7"))

    def test_a_log_with_an_archived_front_round_trips(self, log: EventLog, tmp_path: Path) -> None:
        self._archive(log, tmp_path)
        export_bundle(log, "r", tmp_path / "rest.bundle")
        with open_log(tmp_path / "other.db") as other:
            import_bundle(other, tmp_path / "rest.bundle")
            report = verify_chain(other, "r")
            assert (report.fault, report.archived_through, report.events) == (None, 6, 4)
            export_bundle(other, "r", tmp_path / "again.bundle")
        assert (tmp_path / "again.bundle").read_bytes() == (tmp_path / "rest.bundle").read_bytes()

    def _archive(self, log: EventLog, tmp_path: Path) -> tuple[Path, list[Record]]:
        before = log.append("r", batch(10))
        save_snapshot(log, "r", 6, b"six", engine="0.1.0")
        seal_segment(log, "r", 6)
        archive = tmp_path / "first.bundle"
        archive_segment(log, "r", 6, archive)
        return archive, before
