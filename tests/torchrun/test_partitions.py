"""Machines in network namespaces that are cut off from each other: silently, as a pulled cable does it."""

import time

import network_machines as namespaces
import pytest
from postgres_server import end_postgres_server, make_postgres_server

CANNOT = namespaces.cannot()
pytestmark = [pytest.mark.torchrun, pytest.mark.skipif(CANNOT is not None, reason=CANNOT or "")]

QUIET_S = 8
"""Several leases long: whoever were to decide wrongly would have done so."""


@pytest.fixture
def machines():
    with namespaces.Machines() as made:
        yield made


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"a secret of this test's run only")
    return {"LM_RESILIENCY_SECRET_FILE": str(path)}


@pytest.fixture
def postgres_server_at(machines):
    """URL of a server that listens at the switch `a`."""
    server = make_postgres_server()
    server.serve_network(machines.host)
    yield f"postgresql+psycopg://postgres@{machines.host}:5432/postgres?connect_timeout=2"
    end_postgres_server(server)


def four_machines(waiting, machines, sides, **settings):
    """Three active nodes and a standby, each on a machine of its own; `sides` says on which switch."""
    addresses = [machines.add(f"node-{number}", side) for number, side in enumerate(sides, 1)]
    loop = waiting(nodes="3:4", nproc=1, endpoint=f"{addresses[0]}:29400", inside=machines.inside, **settings)
    loop.start_all("node-1", "node-2", "node-3", "node-4")
    loop.wait_running(0)
    return loop


def beats_end_before_the_loss_of(loop, node, rank):
    """The node's worker had stopped when its loss was recorded: nobody could take its place any sooner."""
    (lost,) = [r for r in loop.records() if r.event.type == "node_lost" and r.event.to_json()["data"]["node"] == node]
    ahead_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
    pid = next(e["pid"] for e in loop.entries(rank) if e.get("started") == "0")
    assert max(loop.beats(rank)[pid]) // 1_000_000 + ahead_ms < lost.recorded_at_ms


def test_a_node_cut_off_fences_itself_before_its_lease_is_taken(machines, waiting):
    """Embedded log: the standby takes the slot; the node comes back as a standby; never two writers."""
    loop = four_machines(waiting, machines, "aaaa")
    machines.cut_off("node-2")
    loop.wait_running(1)
    assert loop.told()[1:] == [("replace", "node_lost")]
    assert loop.active() == ["node-1", "node-4", "node-3"]
    beats_end_before_the_loss_of(loop, "node-2", 1)
    machines.reconnect("node-2")
    loop.wait_joined(5)
    loop.finish_well("node-1", "node-2", "node-3", "node-4")
    loop.assert_one_writer()
    assert len(loop.plans()) == 2


@pytest.mark.long
def test_a_deciding_minority_commits_nothing(machines, waiting):
    """The host and the standby on one side, two of three nodes on the other: nobody decides until they meet again."""
    loop = four_machines(waiting, machines, "abba")
    machines.divide()
    seen = len(loop.records())
    time.sleep(QUIET_S)
    assert [r.event.type for r in loop.records()[seen:]] == []
    machines.unite()
    loop.finish_well("node-1", "node-2", "node-3", "node-4")
    loop.assert_one_writer()
    assert loop.active() == ["node-1", "node-2", "node-3"]


@pytest.mark.long
def test_with_a_database_the_decider_is_cut_off(machines, postgres_server_at, secret, waiting):
    """It fences itself, another takes the lease over, and healing gives neither two deciders nor two writers."""
    loop = four_machines(waiting, machines, "aaaa", log_url=postgres_server_at, environ=secret)
    machines.cut_off("node-1")
    loop.wait_for(lambda: loop.active() == ["node-4", "node-2", "node-3"], "the decider to be replaced")
    loop.wait_running(loop.plans()[-1]["to_generation"])
    beats_end_before_the_loss_of(loop, "node-1", 0)
    machines.reconnect("node-1")
    loop.wait_joined(5)
    loop.finish_well("node-1", "node-2", "node-3", "node-4", timeout_s=120)
    loop.assert_one_writer()
    assert sorted({r.epoch for r in loop.records()}) == [1, 2]


@pytest.mark.long
def test_with_a_database_a_deciding_minority_commits_nothing(machines, postgres_server_at, secret, waiting):
    """The database is on the minority's side and takes its word; that it is a minority, it must know itself."""
    loop = four_machines(waiting, machines, "abba", log_url=postgres_server_at, environ=secret)
    machines.divide()
    seen = len(loop.records())
    time.sleep(QUIET_S)
    assert [r.event.type for r in loop.records()[seen:]] == []
    machines.unite()
    loop.finish_well("node-1", "node-2", "node-3", "node-4", timeout_s=120)
    loop.assert_one_writer()
    assert loop.active() == ["node-1", "node-2", "node-3"]
