"""On any machine that can read the log, and from the log alone: nodes, steps, the last decision."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict

from rich.console import Group
from rich.live import Live
from rich.table import Table

from lmr.integrations.operate.runs import RunNotChosen, chosen_run
from lmr.integrations.operate.standing import Follower, Standing
from lmr.replay_tool.standard_output import PlainConsole
from lmr.store import Lease, LogUnavailable, StoreError, open_log

REFRESH_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr status` and `lmr watch`."""
    parser.add_argument("log", metavar="LOG", help="SQLAlchemy URL or SQLite path")
    parser.add_argument("--run", dest="run_id", help="the run's id, when the log holds several")
    if parser.prog.endswith("status"):
        parser.add_argument("--json", action="store_true", help="one JSON object")
        parser.add_argument(
            "--exit-code",
            action="store_true",
            help="exit with 0 if the run succeeded, 2 if it cannot be read, else 1; the last line says how it stands",
        )


def run(args: argparse.Namespace) -> int:
    """Show the standing once (`status`), or until the run closes (`watch`)."""
    try:
        return _status(args) if args.verb == "status" else _watch(args)
    except (StoreError, RunNotChosen) as error:
        print(f"lmr {args.verb}: {error}", file=sys.stderr)
        return 2


def _status(args: argparse.Namespace) -> int:
    with open_log(args.log, create=False, read_only=True) as log:
        follower, run_id = Follower(), chosen_run(log, args.run_id)
        for record in log.read(run_id):
            follower.fold(record)
        standing, lease, now_ms = follower.standing(), log.lease(run_id), log.now_ms()
        if args.json:
            decider = _node(lease) if lease is not None and lease.expires_at_ms >= now_ms else None
            print(json.dumps({**asdict(standing), "decider": decider}, indent=2))
        else:
            PlainConsole(soft_wrap=True).print(render(standing, now_ms, lease))
    if not args.exit_code:
        return 0
    if not args.json:
        print(f"{standing.run}: {standing.state}" + (f" ({standing.reason})" if standing.closed else ""))
    return 0 if standing.state == "succeeded" else 1


def _watch(args: argparse.Namespace) -> int:
    with open_log(args.log, create=False, read_only=True) as log:
        run_id = chosen_run(log, args.run_id)
        follower, lease = Follower(), log.lease(run_id)
        now_ms = log.now_ms()
        with Live(refresh_per_second=4, console=PlainConsole()) as live:
            while True:
                outage = None
                try:
                    for record in log.read(run_id, after=follower.state.seq):
                        follower.fold(record)
                    lease, now_ms = log.lease(run_id), log.now_ms()
                except LogUnavailable as error:
                    outage = str(error)
                standing = follower.standing()
                live.update(render(standing, now_ms, lease, outage))
                if standing.closed:
                    return 0
                time.sleep(REFRESH_S)


def render(standing: Standing, now_ms: int, lease: Lease | None = None, outage: str | None = None) -> Group:
    """The standing as a person reads it.

    Args:
        standing: what to show.
        now_ms: the time by the log's clock, to say how long ago things were.
        lease: the right to decide, as the log has it.
        outage: why the log cannot be read now, if so: what is shown is from before.
    """
    facts = Table(box=None, show_header=False, pad_edge=False)
    lag = standing.replica_lag_steps
    decided_ms = standing.last_decision_at_ms
    rows = {
        "run": standing.run,
        "state": standing.state + (", an incident is being decided" if standing.incident_open else ""),
        "generation": standing.generation,
        "step": standing.step,
        "newest complete step": standing.complete_step,
        "newest certified step": standing.certified_step,
        "newest replicated step": standing.replicated_step,
        "replicas behind": None if lag is None else f"{lag} steps",
        "recoveries": standing.recoveries,
        "last decision": None if decided_ms is None else f"{standing.last_decision}, {_ago(now_ms - decided_ms)}",
        "log": f"{standing.seq} events, the newest {_ago(now_ms - standing.recorded_at_ms)}",
    }
    if not standing.closed:
        rows["decided by"] = _decider(lease, now_ms)
    if outage is not None:
        rows["cannot read the log"] = outage
    for name, value in rows.items():
        facts.add_row(name, "-" if value is None else str(value))
    nodes = Table("node", "is", "slot", "captured", "replicated", box=None, pad_edge=False)
    for node in standing.nodes:
        cells = (node.slot, node.captured_step, node.replicated_step)
        nodes.add_row(node.node, node.role, *("-" if cell is None else str(cell) for cell in cells))
    return Group(facts, "", nodes)


def _node(lease: Lease) -> str:
    """Agents hold leases as `node/incarnation`."""
    return lease.holder.partition("/")[0]


def _decider(lease: Lease | None, now_ms: int) -> str:
    if lease is None:
        return "nobody"
    if lease.expires_at_ms >= now_ms:
        return f"{_node(lease)} at {lease.address}"
    return f"nobody: the lease of {_node(lease)} ended {_ago(now_ms - lease.expires_at_ms)}"


def _ago(ms: int) -> str:
    seconds = max(0, ms) // 1000
    if seconds < 120:
        return f"{seconds} s ago"
    return f"{seconds // 60} min ago" if seconds < 7200 else f"{seconds // 3600} h ago"
