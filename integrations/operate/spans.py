"""OpenTelemetry spans of every recovery, from the log alone: one span a recovery, its phases as children.

Trace and span ids follow from the plan, so sending a log twice makes no second span.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lmr.engine import Record, State, apply
from lmr.integrations.operate.phases import Recovery, RecoveryClock, opened_ms
from lmr.integrations.operate.runs import RunNotChosen, chosen_run
from lmr.store import EventLog, StoreError, open_log

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

NAMES = {
    "decide": "decide",
    "hold": "wait for a standby",
    "start": "stop and start workers",
    "restore": "restore state",
    "step": "first step",
}
"""Phase -> name of its span, which begins where the one before it ends."""
RETRY_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr spans`."""
    parser.add_argument("--log", required=True, help="the event log: SQLAlchemy URL or SQLite path")
    parser.add_argument("--run", dest="run_id", help="the run's id, when the log holds several")
    parser.add_argument(
        "--follow", action="store_true", help="go on with each recovery as it ends, until the run closes"
    )
    parser.add_argument(
        "--endpoint",
        help="OTLP/HTTP address of the traces, as http://collector:4318/v1/traces (default: the OTEL_EXPORTER_OTLP_* "
        "variables, else this machine's collector)",
    )
    parser.add_argument("--console", action="store_true", help="print the spans as JSON instead of sending them")


def run(args: argparse.Namespace) -> int:
    """Send the spans of the recoveries in the log; with `--follow`, those to come as well."""
    try:
        exporter = _exporter(args)
    except ImportError:
        print("lmr spans: pip install 'lm-resiliency-engine[tracing]' first", file=sys.stderr)
        return 2
    done = threading.Event()
    if args.follow:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: done.set())
    sent = 0
    try:
        with open_log(args.log, create=False, read_only=True) as log:
            for spans in spans_of_log(log, chosen_run(log, args.run_id), follow=args.follow, done=done):
                while not _export(exporter, spans):
                    if not args.follow:
                        print("lmr spans: the collector did not take them; nothing is lost, try again", file=sys.stderr)
                        return 1
                    if done.wait(RETRY_S):
                        return 1
                sent += len(spans)
    except (StoreError, RunNotChosen) as error:
        print(f"lmr spans: {error}", file=sys.stderr)
        return 2
    finally:
        exporter.shutdown()
    print(f"{sent} spans", file=sys.stderr)
    return 0


def _exporter(args: argparse.Namespace) -> SpanExporter:
    if args.console:
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stdout)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(endpoint=args.endpoint)


def _export(exporter: SpanExporter, spans: list[ReadableSpan]) -> bool:
    from opentelemetry.sdk.trace.export import SpanExportResult

    return exporter.export(spans) is SpanExportResult.SUCCESS


def spans_of_log(
    log: EventLog, run_id: str, *, follow: bool = False, done: threading.Event | None = None
) -> Iterator[list[ReadableSpan]]:
    """The spans of each recovery that is over, recovery by recovery.

    Args:
        log: the log.
        run_id: the run.
        follow: wait for more until the run is closed.
        done: set to stop waiting.
    """
    state, clock = State(), RecoveryClock()
    records: Iterator[Record]
    if follow:
        records = log.follow(run_id, stop=lambda: state.closed is not None or (done is not None and done.is_set()))
    else:
        records = log.read(run_id)
    for record in records:
        opened = opened_ms(state)
        apply(state, record)
        for recovery in clock.take(record, opened):
            yield spans_of(recovery)


def spans_of(recovery: Recovery) -> list[ReadableSpan]:
    """The recovery's span, then one for each phase the log tells of."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    plan = recovery.plan
    trace_id = _id(plan.plan_id, "trace", 16)
    sampled = TraceFlags(TraceFlags.SAMPLED)

    def context(what: str) -> SpanContext:
        return SpanContext(trace_id, _id(plan.plan_id, what, 8), is_remote=False, trace_flags=sampled)

    resource = Resource.create({"service.name": "lmr", "lmr.run": plan.run_id})
    whole = context("recovery")
    failed = recovery.outcome != "resumed"
    status = Status(StatusCode.ERROR, f"{recovery.outcome}: {plan.reason}") if failed else Status(StatusCode.OK)
    attributes: dict[str, str | int | tuple[str, ...] | tuple[int, ...]] = {
        "lmr.plan": plan.plan_id,
        "lmr.incident": plan.incident,
        "lmr.action": plan.action,
        "lmr.reason": plan.reason,
        "lmr.cause": plan.cause.kind,
        "lmr.cause.nodes": tuple(plan.cause.nodes),
        "lmr.cause.ranks": tuple(plan.cause.ranks),
        "lmr.generation": plan.to_generation,
        "lmr.outcome": recovery.outcome or "",
    }
    if plan.checkpoint is not None:
        attributes |= {
            "lmr.step": plan.checkpoint.step,
            "lmr.trust": plan.checkpoint.trust,
            "lmr.lost_steps": plan.checkpoint.lost_steps,
        }
    ended_ms = recovery.ended_ms or recovery.decided_ms
    found = [
        ReadableSpan(
            f"recovery: {plan.action}",
            context=whole,
            resource=resource,
            attributes=attributes,
            kind=SpanKind.INTERNAL,
            status=status,
            start_time=recovery.detected_ms * 1_000_000,
            end_time=ended_ms * 1_000_000,
        )
    ]
    for phase, begin_ms, end_ms in recovery.phases():
        found.append(
            ReadableSpan(
                NAMES[phase],
                context=context(phase),
                parent=whole,
                resource=resource,
                attributes={"lmr.phase": phase},
                kind=SpanKind.INTERNAL,
                start_time=begin_ms * 1_000_000,
                end_time=end_ms * 1_000_000,
            )
        )
    return found


def _id(plan_id: str, what: str, size_bytes: int) -> int:
    digest = hashlib.sha256(f"lmr-span\0{plan_id}\0{what}".encode()).digest()
    return int.from_bytes(digest[:size_bytes], "big") or 1
