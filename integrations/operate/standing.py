"""Where a run stands, from its event log alone: nodes, generation, steps, the last decision."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from lmr.engine.events import (
    CheckpointCaptured,
    CheckpointReplicated,
    NodeCordoned,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeUncordoned,
    PlanCommitted,
    ReplayChecked,
    RunClosed,
    RunOpened,
    TrainingResumed,
)
from lmr.engine.record import Record
from lmr.store import StoreError, open_log

REFRESH_S = 1.0


@dataclass
class Standing:
    """What an operator asks first."""

    run: str = ""
    generation: int | None = None
    state: str = "waiting for nodes"
    nodes: dict[str, str] = field(default_factory=dict)
    captured_step: int | None = None
    replicated_step: int | None = None
    certified_step: int | None = None
    last_decision: str | None = None
    seq: int = 0
    recorded_at_ms: int = 0

    def fold(self, record: Record) -> None:
        """Take one record in."""
        self.run, self.seq, self.recorded_at_ms = record.run_id, record.seq, record.recorded_at_ms
        match record.event.data:
            case RunOpened():
                self.state = "waiting for nodes"
            case NodeJoined(node=node):
                self.nodes[node] = "standby"
            case NodeLeft(node=node):
                self.nodes[node] = "left"
            case NodeLost(node=node):
                self.nodes[node] = "lost"
            case NodeCordoned(node=node):
                self.nodes[node] = f"{self.nodes.get(node, 'unknown').split(',')[0]}, cordoned"
            case NodeUncordoned(node=node):
                self.nodes[node] = self.nodes.get(node, "unknown").split(",")[0]
            case PlanCommitted(plan=plan):
                self._planned(plan)
            case TrainingResumed(step=step):
                self.state = f"training, resumed at step {step}"
            case CheckpointCaptured(step=step):
                self.captured_step = step
            case CheckpointReplicated(step=step):
                self.replicated_step = step
            case ReplayChecked(step=step, verdict="clean"):
                self.certified_step = step
            case RunClosed(outcome=outcome, reason=reason):
                self.state = f"{outcome}: {reason}"
            case _:
                pass

    def _planned(self, plan: Any) -> None:
        self.generation = plan.to_generation
        self.state = "holding for a standby" if plan.action == "hold" else f"{plan.action}ing"
        self.last_decision = f"{plan.action} ({plan.reason}), plan {plan.plan_id[:12]}"
        for node in self.nodes:
            if self.nodes[node] not in ("lost", "left"):
                self.nodes[node] = "standby"
        for assignment in plan.assignments:
            self.nodes[assignment.node] = f"active, slot {assignment.slot}"
        for node in plan.quarantined:
            self.nodes[node] = "quarantined"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr status` and `lmr watch`."""
    parser.add_argument("log", metavar="LOG", help="SQLAlchemy URL or SQLite path")
    parser.add_argument("--run", dest="run_id", help="the run's id, when the log holds several")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    """Show the standing once (`status`), or until the run closes (`watch`)."""
    try:
        with open_log(args.log, create=False, read_only=True) as log:
            runs = log.runs()
            run_id = args.run_id or (runs[0] if len(runs) == 1 else None)
            if run_id is None:
                print(
                    f"lmr {args.verb}: {args.log} holds {len(runs)} runs; say --run: {', '.join(runs)}", file=sys.stderr
                )
                return 2
            standing = Standing()
            for record in log.read(run_id):
                standing.fold(record)
            if args.verb == "status" or args.json:
                Console().print_json(json.dumps(asdict(standing))) if args.json else Console().print(render(standing))
                return 0
            with Live(render(standing), refresh_per_second=4) as live:
                while not standing.state.startswith(("succeeded", "halted")):
                    time.sleep(REFRESH_S)
                    for record in log.read(run_id, after=standing.seq):
                        standing.fold(record)
                    live.update(render(standing))
    except StoreError as error:
        print(f"lmr {args.verb}: {error}", file=sys.stderr)
        return 2
    return 0


def render(standing: Standing) -> Group:
    """The standing as a person reads it."""
    facts = Table(box=None, show_header=False)
    rows = {
        "run": standing.run,
        "state": standing.state,
        "generation": standing.generation,
        "newest captured step": standing.captured_step,
        "newest replicated step": standing.replicated_step,
        "newest certified step": standing.certified_step,
        "last decision": standing.last_decision,
        "log": f"{standing.seq} events",
    }
    for name, value in rows.items():
        facts.add_row(name, "-" if value is None else str(value))
    nodes = Table("node", "is", box=None)
    for node, what in sorted(standing.nodes.items()):
        nodes.add_row(node, what)
    return Group(facts, nodes)
