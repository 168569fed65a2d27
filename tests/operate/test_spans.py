"""`lmr spans`: a span of each recovery with its phases, from recorded logs, to memory and to a real HTTP collector."""

from __future__ import annotations

import http.server
import itertools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from lmr.integrations.operate.main import main as lmr
from lmr.integrations.operate.spans import spans_of_log
from lmr.store import open_log


def exported(log: str) -> tuple[ReadableSpan, ...]:
    exporter = InMemorySpanExporter()
    with open_log(log, create=False, read_only=True) as opened:
        for spans in spans_of_log(opened, opened.runs()[0]):
            assert exporter.export(spans) is SpanExportResult.SUCCESS
    return exporter.get_finished_spans()


def test_a_recovery_is_a_span_with_its_phases_as_children(recorded) -> None:
    whole, *phases = exported(recorded("node-loss"))
    assert whole.name == "recovery: replace"
    assert [span.name for span in phases] == ["decide", "stop and start workers", "restore state", "first step"]
    assert whole.context is not None
    assert {span.parent.span_id for span in phases if span.parent} == {whole.context.span_id}
    assert {span.context.trace_id for span in phases if span.context} == {whole.context.trace_id}
    assert whole.attributes is not None
    assert whole.attributes["lmr.reason"] == "node_lost"
    assert whole.attributes["lmr.cause.nodes"] == ("node-2",)
    assert whole.status.status_code is StatusCode.OK


def test_phases_follow_each_other_and_fill_the_whole(recorded) -> None:
    whole, *phases = exported(recorded("node-loss"))
    assert (phases[0].start_time, phases[-1].end_time) == (whole.start_time, whole.end_time)
    assert all(one.end_time == other.start_time for one, other in itertools.pairwise(phases))


@pytest.mark.parametrize(
    ("story", "actions"),
    [
        ("process-crash", ["restart"]),
        ("restore-ladder", ["restart", "restart"]),
        ("hold-then-halt", ["halt"]),
        ("straggler", ["replace"]),
    ],
)
def test_each_kind_of_recovery(recorded, story: str, actions: list[str]) -> None:
    found = [span for span in exported(recorded(story)) if span.parent is None]
    assert [span.name for span in found][: len(actions)] == [f"recovery: {action}" for action in actions]


def test_waiting_for_a_standby_is_a_phase_and_a_halt_is_an_error(recorded) -> None:
    whole, *phases = exported(recorded("hold-then-halt"))
    assert [span.name for span in phases] == ["decide", "wait for a standby"]
    assert whole.status.status_code is StatusCode.ERROR
    assert whole.status.description == "halted: no_standby"


def test_the_same_log_gives_the_same_ids(recorded) -> None:
    log = recorded("node-loss")
    ids = [[(s.context.trace_id, s.context.span_id) for s in exported(log) if s.context] for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == len(ids[0])


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes OTLP over HTTP; refuses what comes first when told to."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        server: Any = self.server
        self.send_response(server.answer)
        self.end_headers()
        if server.answer == 200:
            server.got.append(ExportTraceServiceRequest.FromString(body))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Any]:
    server: Any = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    server.answer, server.got = 200, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("follow", [[], ["--follow"]], ids=["once", "follow"])
def test_a_collector_gets_them_over_http(recorded, collector, capsys, follow: list[str]) -> None:
    """Also with `--follow`, which ends since the run is closed."""
    assert lmr(["spans", "--log", recorded("node-loss"), "--endpoint", collector.url, *follow]) == 0
    (request,) = collector.got
    (resource,) = request.resource_spans
    assert {a.key: a.value.string_value for a in resource.resource.attributes}["lmr.run"] == "node-loss"
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert len(names) == 5
    assert names[0] == "recovery: replace"
    assert capsys.readouterr().err.splitlines()[-1] == "5 spans"


def test_a_collector_that_refuses_is_said(recorded, collector, capsys) -> None:
    collector.answer = 400
    assert lmr(["spans", "--log", recorded("node-loss"), "--endpoint", collector.url]) == 1
    assert "the collector did not take them" in capsys.readouterr().err


def test_console(recorded, capsys) -> None:
    assert lmr(["spans", "--log", recorded("node-loss"), "--console"]) == 0
    assert '"name": "recovery: replace"' in capsys.readouterr().out


def test_without_the_package_the_cure_is_said(recorded, monkeypatch, capsys) -> None:
    log = recorded("node-loss")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert lmr(["spans", "--log", log]) == 2
    assert capsys.readouterr().err == "lmr spans: pip install 'lm-resiliency-engine[tracing]' first\n"
