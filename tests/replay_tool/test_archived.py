"""A log whose old records were moved to an archive: verified and read on from the state sealed with them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from conftest import CORPUS, Replay
from sqlalchemy import text

from lmr.engine import State, apply
from lmr.engine.state_bytes import state_bytes, state_of
from lmr.integrations.operate.main import main as lmr
from lmr.replay_tool.jsonl import read_records
from lmr.store import open_log
from lmr.store.archived import archive_through, sealed_start, starting_state
from lmr.store.sealing import NotSealable, archive_segment, save_snapshot, seal_segment

LEMON = CORPUS / "lemon-node.jsonl"
RUN = "lemon-node"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, replay: Replay) -> str:
    """The lemon node of the corpus on each dialect."""
    where = f"sqlite:///{tmp_path}/events.db"
    if request.param == "postgresql":
        where = request.getfixturevalue("postgres_url")
    assert replay("import", LEMON, "--into", where).code == 0
    return where


def test_an_archived_log_is_verified_and_read_as_the_whole_one_is(url: str, tmp_path: Path, replay: Replay) -> None:
    """Cut in the middle of an incident: what is open, blamed and copied there is in the sealed state."""
    whole = replay("verify", url, "--json").json
    asked = {at: replay("state", url, "--at", at, "--json").json for at in (40, 64, 65, 66, 98)}
    first = tmp_path / "first.lmrb.gz"
    assert lmr(["db", "archive", url, "--through", "40", "-o", str(first)]) == 0
    second = tmp_path / "second.lmrb"
    assert lmr(["db", "archive", url, "--run-id", RUN, "--through", "64", "-o", str(second)]) == 0

    found = replay("verify", url, "--json")
    assert found.code == 0
    assert (found.json["archived"], found.json["records"], found.json["head_hash"]) == (64, 34, whole["head_hash"])
    for at in (64, 65, 66, 98):
        assert {**replay("state", url, "--at", at, "--json").json, "notes": []} == {**asked[at], "notes": []}
    earlier = replay("state", url, "--at", "40")
    assert (earlier.code, "records 1 to 64 were archived" in earlier.err) == (2, True)

    # The archives hold what left, and each says the same as the seal.
    parts = [replay("verify", bundle, "--json") for bundle in (first, second)]
    assert [part.code for part in parts] == [0, 0]
    assert [part.json["archived"] for part in parts] == [0, 40]
    assert sum(part.json["decisions"] for part in parts) + found.json["decisions"] == whole["decisions"]
    assert {**replay("state", second, "--json").json, "notes": []} == {**asked[64], "notes": []}

    # What needs the whole story says so.
    story = replay("timeline", url)
    assert (story.code, story.err.count("\n")) == (2, 1)
    assert replay("timeline", second).code == 2


def test_anchors_are_compared_across_the_seal(url: str, tmp_path: Path, replay: Replay) -> None:
    hashes = {record.seq: record.hash for record in read_records(LEMON)}
    with open_log(url) as log:
        archive_through(log, RUN, 64, tmp_path / "first.lmrb")

    def verified(seq: int, hash_: str) -> tuple[int, int]:
        anchor = tmp_path / f"{seq}.json"
        anchor.write_text(f'{{"run": "{RUN}", "head": {{"seq": {seq}, "hash": "{hash_}"}}}}')
        ran = replay("verify", url, "--anchors", anchor, "--json")
        return ran.code, ran.json["anchors_checked"]

    assert verified(64, hashes[64]) == (0, 1)
    assert verified(70, hashes[70]) == (0, 1)
    assert verified(10, hashes[10]) == (0, 0)
    assert verified(64, "0" * 64) == (1, 1)
    assert verified(99, "0" * 64) == (1, 0)


def test_a_decision_behind_the_seal_is_still_recomputed(tmp_path: Path, replay: Replay) -> None:
    """A state that is sealed but wrong makes other decisions than were recorded: log and archive say so."""
    url = f"sqlite:///{tmp_path}/events.db"
    replay("import", LEMON, "--into", url)
    with open_log(url) as log:
        state = State()
        for record in log.read(RUN, 0, 64):
            apply(state, record)
        state.nodes["node-3"].blamed_ms.clear()
        save_snapshot(log, RUN, 64, state_bytes(state), engine="0.1.0")
        with pytest.raises(Exception, match="not deterministic"):
            archive_through(log, RUN, 64, tmp_path / "first.lmrb")
        before = replay("verify", url, "--json")
        assert [fault["kind"] for fault in before.json["faults"]] == ["snapshot_differs"]
        seal_segment(log, RUN, 64)
        archive_segment(log, RUN, 64, tmp_path / "first.lmrb")
    after = replay("verify", url, "--json")
    assert (after.code, after.json["faults"][0]["kind"]) == (1, "decision_differs")
    archive = replay("verify", tmp_path / "first.lmrb", "--json")
    assert [fault["kind"] for fault in archive.json["faults"]] == ["snapshot_differs"]


@pytest.mark.parametrize(
    ("statement", "code", "said"),
    [
        ("UPDATE snapshots SET state = 'x'", 1, "not those its digest names"),
        ("UPDATE snapshots SET hash = 'x'", 1, "not the one that was sealed"),
        ("DELETE FROM snapshots", 1, "is missing"),
        ("UPDATE seals SET state_digest = 'x'", 1, "root hash is wrong"),
    ],
)
def test_a_tampered_seal_or_state_is_a_fault(
    tmp_path: Path, replay: Replay, statement: str, code: int, said: str
) -> None:
    path = tmp_path / "events.db"
    replay("import", LEMON, "--into", path)
    with open_log(path) as log:
        archive_through(log, RUN, 64, tmp_path / "first.lmrb")
    with sqlite3.connect(path) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
    found = replay("verify", path)
    assert found.code == code
    assert "seal_broken" in found.out
    assert said in " ".join(found.out.split())
    assert replay("state", path).code == 2


def test_a_state_of_another_layout_is_refused_in_a_line(tmp_path: Path, replay: Replay) -> None:
    path = tmp_path / "events.db"
    replay("import", LEMON, "--into", path)
    with open_log(path) as log:
        save_snapshot(log, RUN, 64, b"another version's", engine="9.0")
        seal_segment(log, RUN, 64)
        archive_segment(log, RUN, 64, tmp_path / "first.lmrb")
    for verb in ("verify", "state"):
        ran = replay(verb, path)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "sealed with the archive" in ran.err


def test_only_what_is_there_can_be_archived(tmp_path: Path, replay: Replay, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "events.db"
    replay("import", LEMON, "--into", path)
    with open_log(path) as log:
        assert sealed_start(log, RUN) is None
        assert starting_state(log, RUN) == State()
        for seq in (0, 99):
            with pytest.raises(NotSealable, match="1 to 98"):
                archive_through(log, RUN, seq, tmp_path / "a.lmrb")
        archive_through(log, RUN, 64, tmp_path / "a.lmrb")
        with pytest.raises(NotSealable, match="65 to 98"):
            archive_through(log, RUN, 40, tmp_path / "b.lmrb")
        kept = sealed_start(log, RUN)
        assert kept is not None
        assert state_of(kept.state).seq == 64
        with log.database.read() as connection:
            assert connection.scalar(text("SELECT min(seq) FROM events")) == 65
    capsys.readouterr()
    for words in (
        ["--through", "70"],
        ["--through", "70", "-o", str(tmp_path / "a.lmrb")],
        ["--run-id", "x", "--through", "70", "-o", "b"],
    ):
        assert lmr(["db", "archive", str(path), *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
