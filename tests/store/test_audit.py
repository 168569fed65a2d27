"""The audit views, and every query of docs/audit.md with the result printed there, on both dialects."""

import re
from pathlib import Path

import pytest
from audit_tables import table
from postgres_server import new_schema
from sqlalchemy import text
from store_samples import batch, joined
from store_story import RUN, Story

from lmr.engine.events import GenerationStarted, RestoreFailed, RunOpened
from lmr.engine.offline import run_facts
from lmr.store import EventLog, open_log
from lmr.store.bundle import bundle_records, import_bundle
from lmr.store.schema import AUDIT_VIEWS

DOCS = Path(__file__).parents[2] / "docs" / "audit.md"
RECORDED = Path(__file__).parent / "recorded" / "story.bundle"
QUERIES = re.findall(
    r"^### \d+\. (.+?)\n.*?```sql\n(.+?);\n```\n\n(\|.+?)\n(?:\n|\Z)", DOCS.read_text(), re.DOTALL | re.MULTILINE
)


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> dict[str, EventLog]:
    """The recorded run on each dialect."""
    logs = {
        "sqlite": open_log(tmp_path_factory.mktemp("story") / "events.db"),
        "postgresql": open_log(new_schema(postgres)),
    }
    for log in logs.values():
        import_bundle(log, RECORDED)
    return logs


def test_the_page_has_its_queries() -> None:
    assert len(QUERIES) == DOCS.read_text().count("\n### ") >= 15


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
@pytest.mark.parametrize(("query", "shown"), [query[1:] for query in QUERIES], ids=[query[0] for query in QUERIES])
def test_each_query_gives_what_the_page_shows(
    stories: dict[str, EventLog], dialect: str, query: str, shown: str
) -> None:
    with stories[dialect].database.read() as connection:
        result = connection.execute(text(re.sub(r":(?=[a-z%])", r"\\:", query)))
        assert table(list(result.keys()), [tuple(row) for row in result]) == shown


@pytest.mark.parametrize("view", AUDIT_VIEWS)
def test_both_dialects_say_the_same(stories: dict[str, EventLog], view: str) -> None:
    found = []
    for log in stories.values():
        with log.database.read() as connection:
            result = connection.execute(text(f"SELECT * FROM {view}"))
            found.append((list(result.keys()), sorted(str(tuple(row)) for row in result)))
    assert found[0] == found[1]
    assert len(found[0][1]) > 0


@pytest.mark.parametrize("view", AUDIT_VIEWS)
def test_every_column_is_documented(stories: dict[str, EventLog], view: str) -> None:
    with stories["sqlite"].database.read() as connection:
        columns = set(connection.execute(text(f"SELECT * FROM {view}")).keys()) - {"run_id"}
    line = next(line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{view}` "))
    if view == "audit_events":
        line += next(line for line in DOCS.read_text().splitlines() if line.startswith("| `events` "))
    assert {column for column in columns if f"`{column}`" not in line} == set()


def test_decisions_are_stamped_with_what_they_were_computed_from(stories: dict[str, EventLog]) -> None:
    """Engine version, policy digest, and seq and hash of the last record read."""
    hashes = {record.seq: record.hash for record in bundle_records(RECORDED)}
    with stories["sqlite"].database.read() as connection:
        rows = connection.execute(
            text("SELECT seq, decided_through, decided_on_hash, engine, policy_digest FROM audit_plans")
        ).all()
    assert len(rows) == 8
    for seq, through, hash_, engine, digest in rows:
        assert 0 < through < seq
        assert hash_ == hashes[through]
        assert engine
        assert re.fullmatch("[0-9a-f]{64}", digest)


def test_every_recovery_plan_names_facts_that_are_in_the_log(stories: dict[str, EventLog]) -> None:
    """Causation: each decision cites its causes by seq, and all of them exist before it."""
    with stories["sqlite"].database.read() as connection:
        plans = connection.execute(
            text("SELECT seq, evidence_count, rejected_count FROM audit_plans WHERE action <> 'start'")
        ).all()
        cited = connection.execute(
            text("SELECT plan_seq, count(*), max(seq) FROM audit_evidence WHERE used_for = 'chosen' GROUP BY plan_seq")
        ).all()
    found = {plan_seq: (count, newest) for plan_seq, count, newest in cited}
    for seq, evidence, rejected in plans:
        assert evidence > 0
        assert rejected > 0
        assert found[seq][0] == evidence
        assert found[seq][1] < seq


def test_an_incident_that_takes_several_plans_is_one_row(log: EventLog) -> None:
    """A restore that fails is planned again: the times run from the first fact to the resumption of the last plan."""
    story = Story()
    opened = RunOpened(
        run_id=RUN, min_nodes=4, max_nodes=8, local_world_size=2, detection=True, checkpointing=True, policy={}
    )
    story.say("decider", opened)
    for number in range(1, 6):
        story.join(number)
    story.begin()
    story.train(1_000)
    story.train(2_000)
    story.lose(3)
    lost_at = story.now_ms
    first = story.plan()
    for slot in first.assignments:
        story.say(slot.node, GenerationStarted(generation=first.to_generation, node=slot.node))
    assert first.checkpoint is not None
    source = first.checkpoint.sources[3]
    failed = RestoreFailed(
        generation=first.to_generation,
        node=first.assignments[3].node,
        step=first.checkpoint.step,
        slot=3,
        holder=source.holder,
        tier=source.tier,
        why="digest_mismatch",
    )
    story.say(first.assignments[3].node, failed)
    story.begin()
    log.restore(RUN, [record for _, record in run_facts(story.facts)])
    with log.database.read() as connection:
        rows = connection.execute(text("SELECT * FROM audit_incidents")).mappings().all()
        times = connection.execute(text("SELECT * FROM audit_recovery_times")).mappings().all()
    assert [(row["plans"], row["cause_kind"], row["outcome"], row["to_generation"]) for row in rows] == [
        (2, "node_loss", "resumed", first.to_generation + 1)
    ]
    assert rows[0]["checkpoint_step"] == 1_000
    assert times[0]["detected_at_ms"] == lost_at
    assert times[0]["resumed_at_ms"] == story.now_ms
    assert times[0]["total_ms"] == story.now_ms - lost_at


def test_views_of_a_log_without_plans_are_empty(log: EventLog) -> None:
    log.append("r", batch(3))
    with log.database.read() as connection:
        for view in ("audit_plans", "audit_incidents", "audit_recovery_times", "audit_evidence", "audit_rejected"):
            assert connection.execute(text(f"SELECT * FROM {view}")).all() == []


def test_a_nul_in_a_text_does_not_break_the_views(log: EventLog) -> None:
    log.append("r", [("x", joined("n", address="a\0b"))])
    with log.database.read() as connection:
        assert connection.scalar(text("SELECT address FROM audit_membership")) == "a\ufffdb"


def test_the_rare_views_do_not_read_the_mass_of_checkpoint_facts(tmp_path: Path) -> None:
    with open_log(tmp_path / "events.db") as log:
        import_bundle(log, RECORDED)
        with log.database.read() as connection:
            for view in ("audit_plans", "audit_evidence", "audit_membership", "audit_rejected"):
                plan = [row[3] for row in connection.execute(text(f"EXPLAIN QUERY PLAN SELECT * FROM {view}"))]
                assert any("events_rare" in line for line in plan), view
                assert not any(line.startswith("SCAN e") for line in plan), (view, plan)
