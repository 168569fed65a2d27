"""Whatever is done to a stored log, verification names the first record at fault."""

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, text
from store_samples import batch
from store_tamper import rechain, unguarded

from lmr.engine.record import record_hash
from lmr.store import EventLog, LogCorrupt, StoreError
from lmr.store.sealing import save_snapshot
from lmr.store.verify import check_anchors, verified_records, verify_chain

Tamper = Callable[[Connection], None]


def _run(statement: str) -> Tamper:
    return lambda connection: _all(connection, [statement])


def _all(connection: Connection, statements: list[str]) -> None:
    for statement in statements:
        connection.execute(text(statement))


def _swap(connection: Connection) -> None:
    rows = {
        row.seq: row
        for row in connection.execute(
            text("SELECT seq, event_id, body, prev_hash, hash FROM events WHERE seq IN (5, 6)")
        )
    }
    connection.execute(text("UPDATE events SET event_id = 'tmp' WHERE seq = 5"))
    for seq, other in ((6, rows[5]), (5, rows[6])):
        connection.execute(
            text("UPDATE events SET event_id = :e, body = :b, prev_hash = :p, hash = :h WHERE seq = :s"),
            {"e": other.event_id, "b": other.body, "p": other.prev_hash, "h": other.hash, "s": seq},
        )


def _flip(seq: int) -> Tamper:
    def tamper(connection: Connection) -> None:
        body = bytearray(connection.scalar(text("SELECT body FROM events WHERE seq = :s"), {"s": seq}))
        place = body.index(b"abab")
        body[place] ^= 1
        connection.execute(text("UPDATE events SET body = :b WHERE seq = :s"), {"b": bytes(body), "s": seq})

    return tamper


def _overwrite(seq: int, body: bytes) -> Tamper:
    """Other bytes with the right hash for them."""

    def tamper(connection: Connection) -> None:
        previous = connection.scalar(text("SELECT prev_hash FROM events WHERE seq = :s"), {"s": seq})
        connection.execute(
            text("UPDATE events SET body = :b, hash = :h WHERE seq = :s"),
            {"b": body, "h": record_hash(previous, body), "s": seq},
        )

    return tamper


TAMPERINGS: list[tuple[str, Tamper, int, str]] = [
    ("a flipped byte", _flip(7), 7, "hash"),
    ("a flipped byte in the first record", _flip(1), 1, "hash"),
    ("a flipped byte in the last record", _flip(10), 10, "hash"),
    ("a deleted row", _run("DELETE FROM events WHERE seq = 4"), 4, "missing"),
    ("a deleted first row", _run("DELETE FROM events WHERE seq = 1"), 1, "missing"),
    ("two rows swapped", _swap, 5, "chain"),
    ("a cut tail", _run("DELETE FROM events WHERE seq > 8"), 9, "tail is cut"),
    ("another hash", _run(f"UPDATE events SET hash = '{'0' * 64}' WHERE seq = 3"), 3, "hash"),
    ("another previous hash", _run(f"UPDATE events SET prev_hash = '{'0' * 64}' WHERE seq = 3"), 3, "chain"),
    ("another type beside the body", _run("UPDATE events SET type = 'node_lost' WHERE seq = 3"), 3, "column type"),
    ("another time beside the body", _run("UPDATE events SET at_ms = 1 WHERE seq = 3"), 3, "column at_ms"),
    ("another recorded time", _run("UPDATE events SET recorded_at_ms = 1 WHERE seq = 3"), 3, "column recorded_at_ms"),
    ("another source", _run("UPDATE events SET source = 'x' WHERE seq = 3"), 3, "column source"),
    ("another id", _run("UPDATE events SET event_id = 'x' WHERE seq = 3"), 3, "column event_id"),
    ("another epoch", _run("UPDATE events SET epoch = 9 WHERE seq = 3"), 3, "column epoch"),
    ("another version", _run("UPDATE events SET version = 2 WHERE seq = 3"), 3, "column version"),
    ("bytes that are not JSON", _overwrite(3, b"x"), 3, "not JSON"),
    ("a head moved back", _run("UPDATE runs SET head_seq = 8"), 9, "behind the head"),
    ("a head with another hash", _run(f"UPDATE runs SET head_hash = '{'0' * 64}'"), 10, "head"),
]


@pytest.mark.parametrize(("tamper", "seq", "what"), [case[1:] for case in TAMPERINGS], ids=[c[0] for c in TAMPERINGS])
def test_the_first_record_at_fault_is_named(log: EventLog, tamper: Tamper, seq: int, what: str) -> None:
    log.append("r", batch(10))
    assert verify_chain(log, "r").fault is None
    with unguarded(log) as connection:
        tamper(connection)
    report = verify_chain(log, "r")
    assert report.fault is not None
    assert report.fault.seq == seq
    assert what in report.fault.what
    with pytest.raises(LogCorrupt) as caught:
        list(verified_records(log, "r"))
    assert caught.value.seq == seq


def test_reading_stops_at_a_gap(log: EventLog) -> None:
    log.append("r", batch(10))
    with unguarded(log) as connection:
        connection.execute(text("DELETE FROM events WHERE seq = 4"))
    seen: list[int] = []
    with pytest.raises(LogCorrupt) as caught:
        seen.extend(record.seq for record in log.read("r"))
    assert (seen, caught.value.seq) == ([], 4) or (seen, caught.value.seq) == ([1, 2, 3], 4)


class TestAnchors:
    """What the chain alone cannot show."""

    def test_a_tail_cut_together_with_the_head_is_found_by_an_anchor(self, log: EventLog) -> None:
        noted = [(record.seq, record.hash) for record in log.append("r", batch(10))]
        with unguarded(log) as connection:
            connection.execute(text("DELETE FROM events WHERE seq > 8"))
            connection.execute(text(f"UPDATE runs SET head_seq = 8, head_hash = '{noted[7][1]}'"))
        assert verify_chain(log, "r").fault is None
        assert check_anchors(log, "r", [noted[3]]) is None
        fault = verify_chain(log, "r", anchors=[noted[3], noted[9]]).fault
        assert fault is not None
        assert (fault.seq, "tail is cut" in fault.what) == (9, True)

    def test_a_log_chained_anew_from_the_middle_is_found_between_two_anchors(self, log: EventLog) -> None:
        noted = [(record.seq, record.hash) for record in log.append("r", batch(10))]
        with unguarded(log) as connection:
            _forge(connection, 6)
            rechain(connection, "r", 6)
        assert verify_chain(log, "r").fault is None
        fault = check_anchors(log, "r", [noted[9], noted[4], noted[1]])
        assert fault is not None
        assert fault.seq == 6
        assert "between 6 and 10" in fault.what
        exact = check_anchors(log, "r", noted)
        assert exact is not None
        assert exact.seq == 6

    def test_anchors_that_agree_find_nothing(self, log: EventLog) -> None:
        noted = [(record.seq, record.hash) for record in log.append("r", batch(10))]
        assert check_anchors(log, "r", noted) is None
        log.append("r", batch(12))
        assert verify_chain(log, "r", anchors=noted).fault is None


def _forge(connection: Connection, seq: int) -> None:
    body = bytes(connection.scalar(text("SELECT body FROM events WHERE seq = :s"), {"s": seq}))
    forged = body.replace(b"abab", b"cdcd")
    connection.execute(text("UPDATE events SET body = :b WHERE seq = :s"), {"b": forged, "s": seq})


class TestAppendOnly:
    """The database itself refuses to change the past."""

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE events SET source = 'x' WHERE seq = 2",
            "UPDATE events SET body = body",
            "DELETE FROM events WHERE seq = 2",
            "DELETE FROM events",
            "UPDATE epochs SET holder = 'x'",
            "DELETE FROM epochs",
            "DELETE FROM runs",
            "UPDATE runs SET head_seq = head_seq - 1",
            "UPDATE runs SET epoch = 0",
            "UPDATE runs SET run_id = 'x'",
            "UPDATE runs SET archived_seq = 2",
            "DELETE FROM snapshots",
            "UPDATE snapshots SET engine = 'x'",
        ],
    )
    def test_changing_statements_are_refused(self, log: EventLog, statement: str) -> None:
        self._fill(log)
        before = list(log.read("r"))
        with pytest.raises(StoreError, match=r"append-only|forward|sealed"), log.database.write() as connection:
            connection.execute(text(statement))
        assert list(log.read("r")) == before

    def test_truncate_is_refused(self, log: EventLog) -> None:
        self._fill(log)
        # SQLite has no TRUNCATE: its word for it is DELETE without WHERE.
        verb = "DELETE FROM" if log.dialect == "sqlite" else "TRUNCATE"
        for table in ("events", "runs", "epochs", "snapshots"):
            with pytest.raises(StoreError, match="append-only"), log.database.write() as connection:
                connection.execute(text(f"{verb} {table}"))

    def test_replacing_a_row_is_refused(self, log: EventLog) -> None:
        """INSERT OR REPLACE deletes without firing SQLite's delete trigger."""
        self._fill(log)
        before = list(log.read("r"))
        columns = "run_id, seq, event_id, type, version, at_ms, source, recorded_at_ms, epoch, body, prev_hash, hash"
        row = f"SELECT {columns.replace('source', chr(39) + 'x' + chr(39))} FROM events WHERE seq = 2"
        verb = "INSERT OR REPLACE" if log.dialect == "sqlite" else "INSERT"
        rest = "" if log.dialect == "sqlite" else " ON CONFLICT (run_id, seq) DO UPDATE SET source = 'x'"
        pragma = ["PRAGMA recursive_triggers=OFF"] if log.dialect == "sqlite" else []
        with pytest.raises(StoreError, match="append-only"), log.database.write() as connection:
            _all(connection, [*pragma, f"{verb} INTO events ({columns}) {row}{rest}"])
        assert list(log.read("r")) == before

    def _fill(self, log: EventLog) -> None:
        log.acquire_lease("r", holder="a", address="h", ttl_ms=60_000)
        log.append("r", batch(3), epoch=1, writer="a")
        save_snapshot(log, "r", 2, b"state", engine="0.1.0")
