"""Revision 0004 of the audit views: the rows of the views before it, at a cost that grows as the log."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from store_story import RUN

from lmr.engine.events import Event, PlanCommitted, TrainingResumed
from lmr.engine.record import Record, genesis_hash, seal
from lmr.replay_tool import bench
from lmr.replay_tool.jsonl import read_records
from lmr.store import EventLog, open_log
from lmr.store.bundle import bundle_records
from lmr.store.grants import grants
from lmr.store.migrate import migrate
from lmr.store.opening import open_database
from lmr.store.schema import AUDIT_VIEWS
from lmr.store.upgrading import upgrade

RECORDED = Path(__file__).parent / "recorded" / "story.bundle"
CORPUS = sorted((Path(__file__).parents[1] / "replay_tool" / "corpus").glob("*.jsonl"))
CHANGED = ("audit_evidence", "audit_incidents", "audit_recovery_times")


def _logs() -> Iterator[list[Record]]:
    """The recorded logs, and some that tell them worse."""
    story = list(bundle_records(RECORDED))
    yield story
    for path in CORPUS:
        yield list(read_records(path))
    yield _chained("told-twice", [said for record in story for said in _again(record.event)])
    yield _chained("not-told", [record.event for record in story if not isinstance(record.event.data, TrainingResumed)])
    holding = [record.event for record in read_records(CORPUS[0].parent / "hold-then-halt.jsonl")]
    yield _chained("held", holding[: next(k for k, event in enumerate(holding, 1) if _holds(event))])


def _chained(run_id: str, events: list[Event]) -> list[Record]:
    """A log of these events, decisions and all, under another run's name."""
    records: list[Record] = []
    for seq, event in enumerate(events, 1):
        previous = records[-1].hash if records else genesis_hash(run_id)
        records.append(
            seal(
                event,
                run_id=run_id,
                seq=seq,
                event_id=str(seq),
                recorded_at_ms=event.at_ms,
                epoch=0,
                prev_hash=previous,
            )
        )
    return records


def _again(event: Event) -> list[Event]:
    """A resumption told twice, and the next generation's too early."""
    if not isinstance(data := event.data, TrainingResumed):
        return [event]
    early = data.model_copy(update={"generation": data.generation + 1})
    return [event, Event(event.type, event.at_ms, event.source, early), event]


def _holds(event: Event) -> bool:
    return isinstance(event.data, PlanCommitted) and event.data.plan.action == "hold"


def _rows(log: EventLog, view: str) -> list[str]:
    with log.database.read() as connection:
        result = connection.execute(text(f"SELECT * FROM {view}"))
        return [str(list(result.keys())), *sorted(str(tuple(row)) for row in result)]


def test_the_new_views_say_what_the_old_ones_said(url: str) -> None:
    database = open_database(url, create=True, read_only=False)
    with database.write() as connection:
        migrate(connection, "0003")
    old = EventLog(database)
    for records in _logs():
        old.restore(records[0].run_id, records)
    before = {view: _rows(old, view) for view in CHANGED}
    old.close()
    upgrade(url)
    with open_log(url) as log:
        assert {view: _rows(log, view) for view in CHANGED} == before
        with log.database.read() as connection:
            outcomes = set(connection.scalars(text("SELECT outcome FROM audit_incidents")))
    assert len(before["audit_incidents"]) > 30
    assert outcomes == {"resumed", "halted", "superseded", "held", "open"}


def test_the_upgrade_keeps_what_an_auditor_may_read(postgres_url: str) -> None:
    database = open_database(postgres_url, create=True, read_only=False)
    with database.write() as connection:
        migrate(connection, "0003")
        schema = connection.scalar(text("SELECT current_schema()"))
        for role in ("w", "a"):
            connection.execute(text(f"CREATE ROLE {schema}_{role}"))
        for statement in grants(schema=schema, writer=f"{schema}_w", auditor=f"{schema}_a"):
            connection.execute(text(statement))
    database.close()
    upgrade(postgres_url)
    with open_log(postgres_url) as log:
        log.restore(RUN, bundle_records(RECORDED))
        with log.database.read() as connection:
            connection.execute(text(f"SET ROLE {schema}_a"))
            for view in AUDIT_VIEWS:
                assert connection.scalar(text(f"SELECT count(*) FROM {view}")) > 0


def _steps(path: Path, view: str) -> int:
    """What reading the view costs, in instructions of SQLite's machine: the same on every computer."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection = sqlite3.connect(path)
    connection.set_progress_handler(count, 100)
    for _ in connection.execute(f"SELECT * FROM {view}"):
        pass
    connection.close()
    return steps


def test_what_a_view_costs_grows_as_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the events and incidents: four times the work, not sixteen."""
    monkeypatch.setattr(bench, "CRASH_EVERY_STEPS", 2)
    for name, size in (("small.db", 1_000), ("large.db", 4_000)):
        bench.make_log(tmp_path / name, size)
    for view in AUDIT_VIEWS:
        small, large = (_steps(tmp_path / name, view) for name in ("small.db", "large.db"))
        assert large < 6 * small + 10, view
