"""`lmr metrics`: a real scrape over HTTP of logs that grow, and of a log that cannot be read for a while."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lmr.engine import Event
from lmr.integrations.operate.main import main as lmr
from lmr.store import open_log

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Server:
    """`lmr metrics` as a process of its own."""

    def __init__(self, log: str, *more: str) -> None:
        command = [sys.executable, "-m", "lmr.integrations.operate.main", "metrics", "--log", log, "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--address", "127.0.0.1", *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said.startswith("serving "), said + self.process.stdout.read()
        self.url = said.split()[-1]

    def scrape(self) -> Samples:
        with urllib.request.urlopen(self.url, timeout=30) as answer:
            text = answer.read().decode()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
def serve() -> Iterator[type[Server]]:
    started = []

    def start(*arguments: str) -> Server:
        started.append(Server(*arguments))
        return started[-1]

    yield start  # type: ignore[misc]
    for server in started:
        server.process.kill()
        server.process.wait()


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def test_a_scrape_tells_what_the_log_tells(recorded, serve, capsys) -> None:
    log = recorded("node-loss", "hold-then-halt")
    samples = serve(log).scrape()
    assert lmr(["status", log, "--run", "node-loss", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    run = {"run": "node-loss"}
    assert value(samples, "lmr_log_up") == 1
    assert value(samples, "lmr_generation", **run) == told["generation"] == 1
    assert value(samples, "lmr_step", **run) == told["step"]
    assert value(samples, "lmr_certified_step", **run) == told["certified_step"]
    assert value(samples, "lmr_replica_lag_steps", **run) == told["replica_lag_steps"] == 0
    assert value(samples, "lmr_events_total", **run) == told["seq"]
    assert value(samples, "lmr_plans_total", **run, action="replace", reason="node_lost") == 1
    assert value(samples, "lmr_recoveries_total", **run, action="replace", outcome="resumed") == 1
    assert value(samples, "lmr_nodes", **run, role="active") == 4
    assert value(samples, "lmr_run_state", **run, state="succeeded") == 1
    assert value(samples, "lmr_run_state", **run, state="training") == 0
    assert value(samples, "lmr_run_state", run="hold-then-halt", state="halted") == 1
    assert value(samples, "lmr_recoveries_total", run="hold-then-halt", action="halt", outcome="halted") == 1


def test_durations_are_those_of_the_log(recorded, serve) -> None:
    """Every phase of the one recovery adds up to the whole, and lies in the bucket it belongs to."""
    samples = serve(recorded("node-loss")).scrape()
    labels = {"run": "node-loss", "action": "replace"}
    sums = {p: value(samples, "lmr_recovery_seconds_sum", **labels, phase=p) for p in PHASES}
    whole = value(samples, "lmr_recovery_seconds_sum", **labels, phase="all")
    assert whole is not None
    assert sum(s for s in sums.values() if s is not None) == pytest.approx(whole)
    below = [
        value(samples, "lmr_recovery_seconds_bucket", **labels, phase="all", le=le) for le in ("0.1", "900.0", "+Inf")
    ]
    assert below == [0, 1, 1]


PHASES = ("decide", "start", "restore", "step")


def test_each_scrape_reads_what_is_new(recorded, serve) -> None:
    log = recorded("node-loss")
    server = serve(log)
    before = value(server.scrape(), "lmr_events_total", run="node-loss")
    with open_log(log) as opened:
        lease = opened.acquire_lease("late", holder="test", address="", ttl_ms=10_000)
        assert lease is not None
        opening = {"run_id": "late", "min_nodes": 1, "max_nodes": 1, "local_world_size": 1}
        fact = {"detection": True, "checkpointing": True, "policy": {}, **opening}
        event = Event.parse({"type": "run_opened", "at_ms": opened.now_ms(), "source": "decider", "data": fact})
        opened.append("late", [("a/1", event)], epoch=lease.epoch, writer="test")
    after = server.scrape()
    assert value(after, "lmr_events_total", run="node-loss") == before
    assert value(after, "lmr_events_total", run="late") == 1
    assert value(after, "lmr_run_state", run="late", state="waiting for nodes") == 1


def test_a_log_that_is_away_is_said_and_comes_back(own_postgres, serve) -> None:
    with open_log(own_postgres.url) as log:
        log.runs()
    server = serve(own_postgres.url)
    assert value(server.scrape(), "lmr_log_up") == 1
    own_postgres.stop("immediate")
    assert value(server.scrape(), "lmr_log_up") == 0
    own_postgres.start()
    assert value(server.scrape(), "lmr_log_up") == 1


def test_it_ends_when_told(recorded, serve) -> None:
    server = serve(recorded("node-loss"), "--run", "node-loss")
    os.kill(server.process.pid, signal.SIGTERM)
    assert server.process.wait(30) == 0


def test_without_the_package_the_cure_is_said(recorded, monkeypatch, capsys) -> None:
    log = recorded("node-loss")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert lmr(["metrics", "--log", log]) == 2
    assert capsys.readouterr().err == "lmr metrics: pip install 'lm-resiliency-engine[metrics]' first\n"


def test_a_port_that_is_none_is_one_line(recorded, capsys) -> None:
    assert lmr(["metrics", "--log", recorded("node-loss"), "--port", "99999"]) == 2
    assert capsys.readouterr().err == "lmr metrics: --port 99999: must be 0 to 65535\n"


def test_a_log_that_is_not_there_is_one_line(tmp_path: Path, capsys) -> None:
    assert lmr(["metrics", "--log", str(tmp_path / "none.db"), "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("lmr metrics: ")


def test_the_page_lists_every_metric(recorded, serve) -> None:
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text()
    listed = set(re.findall(r"^\| `(lmr_\w+)` \|", page, re.MULTILINE))
    suffixes = re.compile(r"_(bucket|sum|count)$")
    assert {suffixes.sub("", name) for name, _ in serve(recorded("node-loss")).scrape()} == listed
