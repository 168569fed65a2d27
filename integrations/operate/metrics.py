"""Prometheus metrics of every run in an event log, from the log alone: serve this on any machine that can read it."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from lmr.integrations.operate.phases import Recovery
from lmr.integrations.operate.standing import Follower, Standing
from lmr.store import EventLog, LogUnavailable, StoreError, open_log

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

STATES = (
    "waiting for nodes",
    "starting",
    "training",
    "recovering",
    "holding for a standby",
    "succeeded",
    "halted",
)
BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
"""Upper bounds: from a warm restart to a large job's restore from durable storage."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr metrics`."""
    parser.add_argument("--log", required=True, help="the event log: SQLAlchemy URL or SQLite path")
    parser.add_argument("--run", dest="run_id", help="this run only (default: every run the log holds)")
    parser.add_argument("--port", type=int, default=9464, help="TCP port; 0 takes a free one (default: %(default)s)")
    parser.add_argument("--address", default="0.0.0.0", help="address to serve on (default: %(default)s)")  # noqa: S104


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    if not 0 <= args.port <= 65535:
        print(f"lmr metrics: --port {args.port}: must be 0 to 65535", file=sys.stderr)
        return 2
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        print("lmr metrics: pip install 'lm-resiliency-engine[metrics]' first", file=sys.stderr)
        return 2
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    try:
        with open_log(args.log, create=False, read_only=True) as log:
            metrics = LogMetrics(log, args.run_id)
            metrics.read()  # a long log is read before the first scrape waits for it
            registry = CollectorRegistry()
            registry.register(cast("Collector", metrics))
            server, thread = start_http_server(args.port, args.address, registry)
            print(f"serving {log.url} on http://{args.address}:{server.server_port}/metrics", flush=True)
            done.wait()
            server.shutdown()
            thread.join()
    except (StoreError, OSError) as error:
        print(f"lmr metrics: {error}", file=sys.stderr)
        return 2
    return 0


class RunMetrics:
    """What one run's records add up to."""

    def __init__(self) -> None:
        self.follower = Follower()
        self.plans: Counter[tuple[str, str]] = Counter()
        self.lost_steps = 0
        self.recoveries: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[tuple[str, str], list[float]] = {}
        """(action, phase) -> how many in each bucket, the last without bound, and then the sum."""

    def take(self, record: Any) -> None:
        """Take the next record in."""
        for recovery in self.follower.fold(record):
            self._over(recovery)
        if record.event.type == "plan_committed":
            plan = record.event.data.plan
            self.plans[plan.action, plan.reason] += 1
            self.lost_steps += 0 if plan.checkpoint is None else plan.checkpoint.lost_steps

    def _over(self, recovery: Recovery) -> None:
        action = recovery.plan.action
        self.recoveries[action, recovery.outcome or ""] += 1
        spans = recovery.phases()
        if recovery.outcome == "resumed" and recovery.ended_ms is not None:
            spans.append(("all", recovery.detected_ms, recovery.ended_ms))
        for phase, begin, end in spans:
            seconds = (end - begin) / 1000
            row = self.seconds.setdefault((action, phase), [0.0] * (len(BUCKETS_S) + 2))
            row[sum(seconds > bound for bound in BUCKETS_S)] += 1
            row[-1] += seconds


class LogMetrics:
    """A collector: reads what is new in the log at each scrape.

    While the log cannot be read, `lmr_log_up` is 0 and everything else stays as it was.
    """

    def __init__(self, log: EventLog, run_id: str | None = None) -> None:
        self._log = log
        self._run_id = run_id
        self._runs: dict[str, RunMetrics] = {}
        self._now_ms = 0
        self._up = False
        self._reading = threading.Lock()

    def read(self) -> None:
        """Fold what is new."""
        with self._reading:
            try:
                for run_id in self._log.runs() if self._run_id is None else [self._run_id]:
                    metrics = self._runs.setdefault(run_id, RunMetrics())
                    for record in self._log.read(run_id, after=metrics.follower.state.seq):
                        metrics.take(record)
                self._now_ms = self._log.now_ms()
                self._up = True
            except LogUnavailable:
                self._up = False

    def collect(self) -> Iterator[Metric]:
        """The metrics after what is new was read; called by prometheus_client at each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        self.read()
        yield GaugeMetricFamily("lmr_log_up", "Whether the event log could be read.", value=float(self._up))
        runs = {run_id: metrics for run_id, metrics in self._runs.items() if metrics.follower.state.seq}
        standings = {run_id: metrics.follower.standing() for run_id, metrics in runs.items()}
        for name, help_, value in _gauges(self._now_ms):
            gauge = GaugeMetricFamily(name, help_, labels=["run"])
            for run_id, standing in standings.items():
                if (number := value(standing)) is not None:
                    gauge.add_metric([run_id], number)
            yield gauge
        state = GaugeMetricFamily("lmr_run_state", "1 for the state the run is in.", labels=["run", "state"])
        nodes = GaugeMetricFamily("lmr_nodes", "Nodes by what they are to the run.", labels=["run", "role"])
        events = CounterMetricFamily("lmr_events", "Events in the log.", labels=["run"])
        plans = CounterMetricFamily("lmr_plans", "Committed plans.", labels=["run", "action", "reason"])
        lost = CounterMetricFamily("lmr_lost_steps", "Steps that plans rolled back.", labels=["run"])
        ended = CounterMetricFamily(
            "lmr_recoveries", "Recoveries by how they ended.", labels=["run", "action", "outcome"]
        )
        seconds = HistogramMetricFamily(
            "lmr_recovery_seconds", "Duration of each phase of recoveries.", labels=["run", "action", "phase"]
        )
        for run_id, metrics in runs.items():
            for word in STATES:
                state.add_metric([run_id, word], float(standings[run_id].state == word))
            for role, count in Counter(node.role for node in standings[run_id].nodes).items():
                nodes.add_metric([run_id, role], count)
            events.add_metric([run_id], metrics.follower.state.seq)
            lost.add_metric([run_id], metrics.lost_steps)
            for labels, count in metrics.plans.items():
                plans.add_metric([run_id, *labels], count)
            for labels, count in metrics.recoveries.items():
                ended.add_metric([run_id, *labels], count)
            for labels, row in metrics.seconds.items():
                seconds.add_metric([run_id, *labels], buckets=_cumulated(row), sum_value=row[-1])
        yield from (state, nodes, events, plans, lost, ended, seconds)


def _gauges(now_ms: int) -> list[tuple[str, str, Any]]:
    def age(standing: Standing) -> float:
        return max(0, now_ms - standing.recorded_at_ms) / 1000

    return [
        ("lmr_generation", "The current generation.", lambda s: s.generation),
        ("lmr_step", "Highest step a fact of this generation names.", lambda s: s.step),
        ("lmr_complete_step", "Newest step with a live source for every slot.", lambda s: s.complete_step),
        ("lmr_certified_step", "Newest step that passed its checks.", lambda s: s.certified_step),
        ("lmr_replicated_step", "Newest step that second nodes hold whole.", lambda s: s.replicated_step),
        ("lmr_replica_lag_steps", "How far replicas are behind.", lambda s: s.replica_lag_steps),
        ("lmr_incident_open", "Whether an incident is being decided.", lambda s: float(s.incident_open)),
        ("lmr_log_age_seconds", "Time since the newest event, by the log's clock.", age),
    ]


def _cumulated(row: list[float]) -> list[tuple[str, float]]:
    found, below = [], 0.0
    for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], row[:-1], strict=True):
        below += count
        found.append((bound, below))
    return found
