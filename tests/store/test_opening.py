"""Opening a log: what is ours is opened, everything else is named and left as it was."""

import os
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from store_samples import batch

from lmr.store import (
    EventLog,
    ForeignDatabase,
    LogReadOnly,
    LogUnavailable,
    SchemaNewer,
    SchemaOlder,
    StoreError,
    filesystems,
    open_log,
    sqlite,
)
from lmr.store.verify import verify_chain


def test_a_path_and_its_url_are_the_same_log(tmp_path: Path) -> None:
    with open_log(tmp_path / "deep" / "events.db") as log:
        log.append("r", batch(2))
    with open_log(f"sqlite:///{tmp_path}/deep/events.db") as log:
        assert log.head("r").seq == 2
    with open_log(str(tmp_path / "deep" / "events.db"), create=False) as log:
        assert log.runs() == ["r"]


def test_a_path_may_hold_anything_a_uri_would_misread(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%20e.db"
    with open_log(path) as log:
        log.append("r", batch(1))
    assert path.exists()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("mysql://host/db", "allowed: sqlite:///FILE"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("postgresql+psycopg://user@host:notaport/db", "not a database URL"),
    ],
)
def test_a_url_we_cannot_open_says_what_is_allowed(where: str, words: str) -> None:
    with pytest.raises(LogUnavailable, match=words):
        open_log(where)


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(LogUnavailable) as caught:
        open_log("postgresql+psycopg://me:secret@127.0.0.1:9/events")
    assert "127.0.0.1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_log_is_not_made_unless_asked_for(tmp_path: Path) -> None:
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(LogUnavailable, match="no such file"):
            open_log(tmp_path / "none.db", **options)
    assert not (tmp_path / "none.db").exists()


def test_an_empty_database_is_not_filled_unless_asked_for(url: str) -> None:
    if url.startswith("sqlite"):
        sqlite3.connect(url.removeprefix("sqlite:///")).executescript("VACUUM")
    with pytest.raises(LogUnavailable, match="no event log"):
        open_log(url, create=False)


@pytest.mark.parametrize("where", ["folder", "/dev/null/x.db", "/proc/x.db"])
def test_a_place_that_cannot_hold_a_log_is_a_clear_error(tmp_path: Path, where: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(LogUnavailable, match=where.rsplit("/", 1)[-1]):
        open_log(tmp_path / where)


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"my notes, not a database at all\n" * 200)
    before = path.read_bytes()
    with pytest.raises(ForeignDatabase):
        open_log(path)
    assert path.read_bytes() == before


def test_somebody_elses_database_is_left_alone(url: str) -> None:
    _execute(url, "CREATE TABLE events (id INTEGER)")
    with pytest.raises(ForeignDatabase):
        open_log(url)
    with pytest.raises(ForeignDatabase):
        open_log(url, create=False, read_only=True)
    assert _tables(url) == {"events"}


def test_a_newer_schema_is_refused_and_left_alone(log: EventLog, url: str) -> None:
    log.append("r", batch(2))
    _execute(url, "UPDATE lmr_schema SET version_num = '9001'")
    for options in ({}, {"create": False}, {"read_only": True}):
        with pytest.raises(SchemaNewer, match="9001"):
            open_log(url, **options)
    # Whoever had it open already may finish.
    assert log.append("r", batch(3))[0].seq == 3


def test_an_older_schema_is_refused_and_left_alone(log: EventLog, url: str) -> None:
    _execute(url, "UPDATE lmr_schema SET version_num = '0001'")
    with pytest.raises(SchemaOlder, match="lmr db upgrade"):
        open_log(url)
    assert _scalar(url, "SELECT version_num FROM lmr_schema") == "0001"


def test_two_agents_that_make_the_log_at_once_make_one(url: str) -> None:
    import threading

    logs: list[EventLog] = []
    failures: list[Exception] = []

    def open_one() -> None:
        try:
            logs.append(open_log(url))
        except StoreError as error:
            failures.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    for number, log in enumerate(logs):
        log.append("r", batch(1, node=f"node-{number}"))
        log.close()
    with open_log(url) as log:
        assert log.head("r").seq == 6


class TestReadOnly:
    """Reading a log needs no right to write."""

    def test_a_read_only_file_is_read(self, tmp_path: Path) -> None:
        folder = tmp_path / "archive"
        with open_log(folder / "events.db") as log:
            log.append("r", batch(3))
        (folder / "events.db").chmod(0o444)
        folder.chmod(0o555)
        try:
            with open_log(folder / "events.db", read_only=True) as log:
                assert verify_chain(log, "r").fault is None
                with pytest.raises(LogReadOnly):
                    log.append("r", batch(4))
        finally:
            folder.chmod(0o755)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
    def test_writing_a_read_only_file_is_a_clear_error(self, tmp_path: Path) -> None:
        with open_log(tmp_path / "events.db") as log:
            log.append("r", batch(3))
        (tmp_path / "events.db").chmod(0o444)
        with pytest.raises(LogReadOnly), open_log(tmp_path / "events.db") as log:
            log.append("r", batch(4))


class TestNetworkFileSystem:
    """WAL needs shared memory between processes; NFS and its kin have none between machines."""

    def test_wal_is_not_used_and_the_file_is_taken_for_one_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sqlite, "filesystem_of", lambda path: "nfs4")
        monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.1)
        with open_log(tmp_path / "events.db") as log:
            log.append("r", batch(2))
            assert [record.seq for record in log.read("r")] == [1, 2]
            with log.database.read() as connection:
                assert connection.scalar(text("PRAGMA journal_mode")) == "delete"
            with pytest.raises(LogUnavailable, match="locked by another process"):
                open_log(tmp_path / "events.db")
        said = capsys.readouterr().out
        assert "log_on_network_filesystem" in said
        assert "postgresql+psycopg" in said
        with open_log(tmp_path / "events.db") as log:
            assert log.head("r").seq == 2

    def test_a_local_file_has_wal_and_full_synchronisation(self, tmp_path: Path) -> None:
        with open_log(tmp_path / "events.db") as log, log.database.read() as connection:
            assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
            assert connection.scalar(text("PRAGMA synchronous")) == 2

    @pytest.mark.parametrize(
        ("path", "kind", "network"),
        [
            ("/data/x.db", "nfs4", True),
            ("/data/local/x.db", "ext4", False),
            ("/datax/x.db", "ext4", False),
            ("/lus tre/x.db", "lustre", True),
            ("/home/me/x.db", "fuse.sshfs", True),
            ("/cifs/x.db", "cifs", True),
        ],
    )
    def test_the_innermost_mount_decides(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, kind: str, network: bool
    ) -> None:
        mounts = tmp_path / "mounts"
        mounts.write_text(
            "/dev/vda / ext4 rw 0 0\nsrv:/x /data nfs4 rw 0 0\n/dev/vdb /data/local ext4 rw 0 0\n"
            "mds:/l /lus\\040tre lustre rw 0 0\nme@srv /home/me fuse.sshfs rw 0 0\n//s/c /cifs cifs rw 0 0\n"
        )
        monkeypatch.setattr(filesystems, "_MOUNTS", mounts)
        found = filesystems.filesystem_of(Path(path))
        assert (found, filesystems.is_network(found)) == (kind, network)


def _execute(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def _scalar(url: str, query: str) -> object:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return connection.scalar(text(query))
    finally:
        engine.dispose()


def _tables(url: str) -> set[str]:
    from sqlalchemy import inspect

    engine = create_engine(url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()
