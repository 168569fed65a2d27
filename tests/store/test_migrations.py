"""Every released revision, with data in it, becomes the newest one; nothing is lost and every guard stands."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert, inspect, text
from store_samples import batch
from store_tamper import unguarded

from lmr.engine.record import Record, genesis_hash, seal
from lmr.store import EventLog, LogUnavailable, SchemaOlder, StoreError, open_log
from lmr.store import migrate as migrations
from lmr.store.migrate import HEAD, REVISIONS, migrate
from lmr.store.opening import open_database
from lmr.store.schema import AUDIT_VIEWS, epochs, metadata
from lmr.store.upgrading import check, current, upgrade
from lmr.store.verify import verify_chain
from lmr.store.writing import row_of


def _records(count: int) -> Iterator[Record]:
    previous = genesis_hash("r")
    for seq, (event_id, event) in enumerate(batch(count), 1):
        record = seal(
            event,
            run_id="r",
            seq=seq,
            event_id=event_id,
            recorded_at_ms=1_700_000_000_000 + seq,
            epoch=1,
            prev_hash=previous,
        )
        previous = record.hash
        yield record


def _at_revision(url: str, revision: str) -> list[Record]:
    """A database as the software of that revision left it: five records, written in its own columns."""
    database = open_database(url, create=True, read_only=False)
    records = list(_records(5))
    with database.write() as connection:
        migrate(connection, revision)
        database.insert_events(connection, [row_of(record) for record in records])
        connection.execute(
            text(
                "INSERT INTO runs (run_id, head_seq, head_hash, recorded_at_ms, epoch, lease_holder, lease_address,"
                " lease_expires_at_ms) VALUES ('r', 5, :hash, :ms, 1, 'a/1', 'h:1', 0)"
            ),
            {"hash": records[-1].hash, "ms": records[-1].recorded_at_ms},
        )
        connection.execute(insert(epochs).values(run_id="r", epoch=1, holder="a/1", address="h:1", acquired_at_ms=0))
    database.close()
    return records


@pytest.mark.parametrize("revision", REVISIONS)
def test_each_revision_upgrades_with_its_data(url: str, revision: str) -> None:
    records = _at_revision(url, revision)
    if revision != HEAD:
        with pytest.raises(SchemaOlder):
            open_log(url)
    before, after = upgrade(url)
    assert (before.revision, after.revision, after.standing) == (revision, HEAD, "current")
    assert check(url) == []
    with open_log(url) as log:
        assert list(log.read("r")) == records
        assert verify_chain(log, "r").fault is None
        assert log.append("r", batch(6), epoch=1, writer="a/1")[0].seq == 6
        for statement in ("DELETE FROM events WHERE seq = 2", "UPDATE events SET source = 'x'", "DELETE FROM runs"):
            with pytest.raises(StoreError, match="append-only"), log.database.write() as connection:
                connection.execute(text(statement))
        with log.database.read() as connection:
            assert connection.scalar(text("SELECT count(*) FROM audit_events")) == 6


def test_the_last_migration_makes_the_tables_the_queries_use(log: EventLog) -> None:
    with log.database.read() as connection:
        found = inspect(connection)
        for table in metadata.sorted_tables:
            columns = {column["name"]: column for column in found.get_columns(table.name)}
            assert set(columns) == {column.name for column in table.c}
            assert {name for name, column in columns.items() if column["nullable"]} == {
                column.name for column in table.c if column.nullable
            }
            key = found.get_pk_constraint(table.name)["constrained_columns"]
            assert key == [column.name for column in table.primary_key]
        assert set(AUDIT_VIEWS) <= set(found.get_view_names())


def test_upgrading_twice_changes_nothing(postgres_url: str) -> None:
    """An empty PostgreSQL schema gets the tables."""
    assert upgrade(postgres_url)[0].standing == "empty"
    assert upgrade(postgres_url)[0].standing == "current"
    assert current(postgres_url).standing == "current"


def test_upgrading_makes_no_sqlite_file(tmp_path: Path) -> None:
    """A mistyped path makes neither folder nor file, and an empty file of another kind stays one."""
    with pytest.raises(LogUnavailable, match="no such file"):
        upgrade(tmp_path / "typo" / "evnets.db")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(LogUnavailable, match="holds no event log"):
        upgrade(tmp_path / "empty.jsonl")
    assert [(item.name, item.stat().st_size) for item in tmp_path.iterdir()] == [("empty.jsonl", 0)]


def test_a_migration_that_fails_has_not_happened(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DDL is transactional on both; SQLite's driver would commit behind our back if we let it."""
    records = _at_revision(url, "0001")

    def fail(*_: object) -> None:
        migrate(*_)  # type: ignore[arg-type]
        raise RuntimeError("power cut")

    monkeypatch.setattr(migrations, "migrate", fail)
    with pytest.raises(RuntimeError):
        upgrade(url)
    monkeypatch.undo()
    assert current(url).revision == "0001"
    upgrade(url)
    with open_log(url) as log:
        assert list(log.read("r")) == records


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("DROP VIEW audit_recovery_times", "view audit_recovery_times is missing"),
        ("UPDATE lmr_schema SET version_num = '0001'", "0001 (older)"),
        ("UPDATE lmr_schema SET version_num = '9001'", "9001 (newer)"),
    ],
)
def test_check_names_what_is_wrong(log: EventLog, url: str, harm: str, said: str) -> None:
    assert check(url) == []
    with log.database.write() as connection:
        connection.execute(text(harm))
    assert [line for line in check(url) if said in line] != []


def test_check_names_views_and_guards_that_are_not_this_versions(tmp_path: Path) -> None:
    """Whoever can write an SQLite file can have a view say anything, and a guard guard nothing."""
    path = tmp_path / "events.db"
    open_log(path).close()
    assert check(path) == []
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executescript(
            "DROP VIEW audit_rejected; CREATE VIEW audit_rejected AS SELECT 'made up' AS reason;"
            "DROP TRIGGER events_no_delete;"
            "CREATE TRIGGER events_no_delete BEFORE DELETE ON events BEGIN SELECT 1; END;"
            "CREATE VIEW audit_more AS SELECT 1;"
        )
    assert sorted(check(path)) == [
        "trigger events_no_delete is not this version's",
        "view audit_more is none of ours",
        "view audit_rejected is not this version's",
    ]


def test_check_names_every_guard_that_is_off(log: EventLog, url: str) -> None:
    with log.database.write() as connection:
        if log.dialect == "sqlite":
            connection.execute(text("DROP TRIGGER events_no_update"))
        else:
            connection.execute(text("ALTER TABLE events DISABLE TRIGGER events_no_change"))
    assert len(check(url)) == 1
    assert "events_no_" in check(url)[0]


def test_the_guards_named_are_all_the_guards_there_are(log: EventLog) -> None:
    with log.database.read() as connection:
        assert log.database.active_guards(connection) == set(log.database.guards)
    with unguarded(log) as connection:
        assert log.database.active_guards(connection) == set()


def test_a_missing_database_is_not_made_to_look_at_it(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable):
        current(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
