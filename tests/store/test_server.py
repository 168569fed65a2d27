"""What only a server can do to us: restart, be killed, be a replica, have roles, send hints."""

import threading
import time

import pytest
from postgres_server import PostgresServer, new_schema
from sqlalchemy import text
from sqlalchemy.engine import make_url
from store_samples import batch

from lmr.store import EventLog, LogReadOnly, LogUnavailable, open_log
from lmr.store.grants import grants
from lmr.store.verify import verify_chain


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
def test_a_server_that_comes_back_has_everything_and_goes_on(own_postgres: PostgresServer, how: str) -> None:
    with open_log(new_schema(own_postgres.url)) as log:
        log.append("r", batch(5))
        own_postgres.kill() if how == "kill" else own_postgres.stop(how)
        with pytest.raises(LogUnavailable):
            log.append("r", batch(6))
        own_postgres.start()
        assert [record.seq for record in log.append("r", batch(7))] == [6, 7]
        assert verify_chain(log, "r").events == 7


def test_a_restart_between_two_appends_is_not_even_noticed(own_postgres: PostgresServer) -> None:
    with open_log(new_schema(own_postgres.url)) as log:
        log.append("r", batch(1))
        own_postgres.stop()
        own_postgres.start()
        assert len(log.append("r", batch(2))) == 1


def test_a_follower_waits_a_restart_out(own_postgres: PostgresServer) -> None:
    seen: list[int] = []
    done = threading.Event()
    with open_log(new_schema(own_postgres.url)) as log:
        log.append("r", batch(2))
        thread = threading.Thread(
            target=lambda: seen.extend(r.seq for r in log.follow("r", poll_ms=100, stop=done.is_set))
        )
        thread.start()
        time.sleep(0.3)
        own_postgres.stop("immediate")
        time.sleep(0.5)
        own_postgres.start()
        log.append("r", batch(4))
        _until(lambda: len(seen) >= 4)
        done.set()
        thread.join(10)
    assert seen == [1, 2, 3, 4]


def test_a_database_that_takes_no_writes_is_never_decided_from(postgres_url: str) -> None:
    """A replica is such a database: locking the head is a write, so no decision can begin there."""
    with open_log(postgres_url) as log:
        log.append("r", batch(2))
    options = str(make_url(postgres_url).query["options"]) + " -c default_transaction_read_only=on"
    replica = make_url(postgres_url).update_query_dict({"options": options}).render_as_string(hide_password=False)
    with open_log(replica) as log:
        assert len(list(log.read("r"))) == 2
        with pytest.raises(LogReadOnly):
            log.append("r", batch(3))
        with pytest.raises(LogReadOnly):
            log.acquire_lease("r", holder="a", address="h", ttl_ms=1)


class TestHints:
    """NOTIFY makes followers quick; nothing needs it."""

    def test_a_hint_wakes_a_follower_long_before_its_poll(self, postgres_url: str) -> None:
        arrived: list[float] = []
        done = threading.Event()
        with open_log(postgres_url) as log:
            log.append("r", batch(1))

            def read() -> None:
                follower = log.follow("r", poll_ms=5_000, stop=done.is_set)
                arrived.extend(time.monotonic() for _ in follower)

            thread = threading.Thread(target=read)
            thread.start()
            _until(lambda: len(arrived) == 1)
            time.sleep(0.5)
            sent = time.monotonic()
            log.append("r", batch(2))
            _until(lambda: len(arrived) == 2)
            done.set()
            time.sleep(0.1)
            log.append("r", batch(3))  # wakes it up to see that it is to stop
            thread.join(10)
        assert arrived[1] - sent < 2

    def test_hints_are_coalesced(self, postgres_url: str) -> None:
        with open_log(postgres_url) as log, log.database.read() as listener:
            listener.execute(text("LISTEN lmr_log"))
            listener.commit()
            begun = time.monotonic()
            for number in range(1, 41):
                log.append("r", batch(number))
            spent = time.monotonic() - begun
            driver = listener.connection.driver_connection
            assert driver is not None
            heard = len(list(driver.notifies(timeout=0.3)))
        assert 1 <= heard <= spent / 0.05 + 1

    def test_followers_see_everything_without_hints(self, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """As behind a pooler that does not pass notifications on."""
        from lmr.store.postgresql import PostgreSQL

        monkeypatch.setattr(PostgreSQL, "hint", lambda *_: None)
        seen: list[int] = []
        done = threading.Event()
        with open_log(postgres_url) as log:
            thread = threading.Thread(
                target=lambda: seen.extend(r.seq for r in log.follow("r", poll_ms=100, stop=done.is_set))
            )
            thread.start()
            for number in range(1, 6):
                log.append("r", batch(number))
            _until(lambda: len(seen) == 5)
            done.set()
            thread.join(10)
        assert seen == [1, 2, 3, 4, 5]


class TestRoles:
    """Triggers do not stop a table's owner; grants stop everybody else."""

    @pytest.fixture
    def roles(self, postgres_url: str) -> tuple[str, str]:
        """URLs of the writer and of the auditor."""
        url = make_url(postgres_url)
        schema = str(url.query["options"]).rpartition("=")[2]
        writer, auditor = f"{schema}_writer", f"{schema}_auditor"
        with open_log(postgres_url) as log, log.database.write() as connection:
            for role in (writer, auditor):
                connection.execute(text(f"CREATE ROLE {role} LOGIN"))
            for statement in grants(schema=schema, writer=writer, auditor=auditor):
                connection.execute(text(statement))
        first, second = (url.set(username=r).render_as_string(hide_password=False) for r in (writer, auditor))
        return first, second

    def test_the_writer_may_append_lease_and_nothing_else(self, roles: tuple[str, str]) -> None:
        with open_log(roles[0], create=False) as log:
            log.acquire_lease("r", holder="a", address="h", ttl_ms=60_000)
            log.append("r", batch(3), epoch=1, writer="a")
            assert verify_chain(log, "r").events == 3
            for statement in (
                "UPDATE events SET source = 'x'",
                "DELETE FROM events",
                "TRUNCATE events",
                "DELETE FROM runs",
                "UPDATE runs SET archived_seq = 1",
                "UPDATE epochs SET holder = 'x'",
                "ALTER TABLE events DISABLE TRIGGER USER",
                "DROP TABLE events",
                "DROP TRIGGER events_no_change ON events",
            ):
                self._refused(log, statement)

    def test_the_auditor_reads_everything_and_writes_nothing(self, roles: tuple[str, str]) -> None:
        from lmr.store.schema import AUDIT_VIEWS

        with open_log(roles[0]) as log:
            log.append("r", batch(3))
        with open_log(roles[1], create=False, read_only=True) as log:
            assert verify_chain(log, "r").events == 3
            with log.database.read() as connection:
                for view in AUDIT_VIEWS:
                    connection.execute(text(f"SELECT * FROM {view}")).all()
        with open_log(roles[1], create=False) as log:
            with pytest.raises(LogReadOnly):
                log.append("r", batch(4))
            self._refused(log, "INSERT INTO epochs VALUES ('r', 9, 'x', 'h', 0)")

    def _refused(self, log: EventLog, statement: str) -> None:
        with pytest.raises(LogReadOnly), log.database.write() as connection:
            connection.execute(text(statement))


def _until(true: object, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.01)
