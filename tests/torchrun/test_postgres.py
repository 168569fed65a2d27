"""With a database server as event log no agent is special: any of them decides, and any of them may be lost."""

import signal

import pytest
from sqlalchemy.engine import make_url

pytestmark = pytest.mark.torchrun


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"a secret of this test's run only")
    return {"LM_RESILIENCY_SECRET_FILE": str(path)}


def test_losing_the_rendezvous_host_is_just_a_node_loss(job, postgres_url, secret):
    """The machine that hosts the endpoint and decides is gone: another agent decides, the standby takes the slot."""
    loop = job("--steps", "150", nodes="2:3", log_url=postgres_url, environ=secret)
    loop.start_all("node-1", "node-2", "node-3")
    loop.train_until(30)
    loop.kill_machine("node-1")
    assert loop.wait_exit("node-2", 120) == 0, loop.standing()
    assert loop.wait_exit("node-3", 120) == 0, loop.standing()
    actions = [p["action"] for p in loop.plans()]
    assert actions == ["start", "replace"], loop.standing()
    assert {a["slot"]: a["node"] for a in loop.plans()[1]["assignments"]} == {0: "node-3", 1: "node-2"}
    assert loop.plans()[1]["checkpoint"]["step"] > 0
    assert [e["outcome"] for e in loop.events("run_closed")] == ["succeeded"]
    assert sorted({r.epoch for r in loop.records()}) == [1, 2]


def test_the_database_away_for_a_while_stops_no_step(job, own_postgres, secret):
    """Facts wait in the spools, training neither waits nor fences itself, and nothing is lost or doubled."""
    loop = job("--steps", "400", nodes="2:2", log_url=own_postgres.url, environ=secret)
    loop.start_all("node-1", "node-2")
    loop.train_until(30)
    seen = len(loop.records())
    own_postgres.stop("immediate")
    reached = loop.step()
    loop.train_until(reached + 150)
    own_postgres.start()
    assert loop.wait_exit("node-1", 120) == 0, loop.standing()
    assert loop.wait_exit("node-2", 120) == 0, loop.standing()
    assert [p["action"] for p in loop.plans()] == ["start"], loop.standing()
    assert [r.seq for r in loop.records()] == list(range(1, len(loop.records()) + 1))
    assert len(loop.records()) > seen
    assert len({e["generation"] for e in loop.events("generation_started")}) == 1
    assert "event_log_outage" in loop.agents["node-1"].text() + loop.agents["node-2"].text()


def test_an_agent_that_starts_while_the_database_is_away_waits_for_it(job, own_postgres, secret):
    """It says so at once, leaves when it is told to, and joins when the server is back."""
    loop = job("--steps", "20", nodes="1:2", log_url=own_postgres.url, environ=secret)
    own_postgres.stop("immediate")
    for node in ("node-1", "node-2"):
        loop.start(node)
        loop.wait_for(
            lambda node=node: "event_log_away" in loop.agents[node].text(), f"{node} to say what it waits for"
        )
    loop.agents["node-2"].process.send_signal(signal.SIGTERM)
    assert loop.wait_exit("node-2") == 0, loop.standing()
    own_postgres.start()
    assert loop.wait_exit("node-1", 120) == 0, loop.standing()


def test_a_database_that_does_not_exist_is_not_waited_for(job, postgres_url, secret):
    url = make_url(postgres_url).set(database="nowhere").render_as_string(hide_password=False)
    loop = job("--steps", "20", nodes="1:1", log_url=url, environ=secret)
    loop.start("node-1")
    assert loop.wait_exit("node-1") == 1, loop.standing()
    assert 'database "nowhere" does not exist' in loop.agents["node-1"].text()
