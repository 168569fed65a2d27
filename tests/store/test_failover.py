"""A real streaming replica is promoted when the server dies: the same URL goes on with everything that was there."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer, end_postgres_server, make_postgres_server
from sqlalchemy.engine import make_url
from store_samples import batch

from lmr.engine.record import Record
from lmr.store import EventLog, LogReadOnly, LogUnavailable, open_log
from lmr.store.verify import verify_chain


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A server and its replica, made by pg_basebackup, which streams from it."""
    first = make_postgres_server()
    if not (first.binaries / "pg_basebackup").exists():
        end_postgres_server(first)
        pytest.skip(f"no pg_basebackup in {first.binaries}")
    folder = Path(tempfile.mkdtemp(prefix="lmr-pg-replica-"))
    folder.chmod(0o755)
    second = PostgresServer(first.binaries, folder)
    if second.user is not None:
        shutil.chown(folder, second.user)
    source = ("-h", str(first.folder), "-U", "postgres", "-D", str(second.data))
    second.run("pg_basebackup", *source, "-R", "--checkpoint=fast", "--no-sync")
    # A commit is acknowledged once the replica has it: else a fail-over may lose acknowledged events.
    second.start()
    first.stop()
    first.start(synchronous_standby_names="'*'", synchronous_commit="remote_apply")
    yield first, second
    for server in (first, second):
        if (server.data / "postmaster.pid").exists():
            end_postgres_server(server)
        else:
            shutil.rmtree(server.folder, ignore_errors=True)


def _url(*servers: PostgresServer) -> str:
    hosts = ",".join(str(server.folder) for server in servers)
    options = {"host": hosts, "connect_timeout": "5"}
    if len(servers) > 1:
        options["target_session_attrs"] = "read-write"
    return make_url("postgresql+psycopg://postgres@/postgres").update_query_dict(options).render_as_string()


def test_a_promoted_replica_goes_on_where_the_killed_server_was(pair: tuple[PostgresServer, PostgresServer]) -> None:
    first, second = pair
    with open_log(_url(first, second)) as log:
        lease = log.acquire_lease("r", holder="a", address="h", ttl_ms=60_000)
        assert lease is not None
        before = log.append("r", batch(20), epoch=lease.epoch, writer="a")
        with open_log(_url(second)) as replica:
            assert list(replica.read("r")) == before
            with pytest.raises(LogReadOnly):
                replica.append("r", batch(21), epoch=lease.epoch, writer="a")
        first.kill()
        with pytest.raises(LogUnavailable):
            log.append("r", batch(25), epoch=lease.epoch, writer="a")
        second.run("pg_ctl", "-D", str(second.data), "-w", "promote")
        # The facts that waited, told again under their ids: each is there once, behind what was acknowledged.
        added = _once_reachable(log, lease.epoch)
        assert [record.seq for record in added] == [21, 22, 23, 24, 25]
        assert log.append("r", batch(25), epoch=lease.epoch, writer="a") == []
        assert list(log.read("r")) == [*before, *added]
        assert verify_chain(log, "r", anchors=[(20, before[-1].hash)]).fault is None
        assert log.renew_lease("r", lease.epoch, 60_000).epoch == lease.epoch


def _once_reachable(log: EventLog, epoch: int) -> list[Record]:
    deadline = time.monotonic() + 60
    while True:
        try:
            return log.append("r", batch(25), epoch=epoch, writer="a")
        except LogUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
