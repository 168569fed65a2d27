"""Check this machine's set-up before a job depends on it. Each failing line says the cure."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from lmr.integrations.operate import doctor_machine, doctor_run
from lmr.integrations.operate.finding import Finding
from lmr.replay_tool.standard_output import PlainConsole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr doctor`."""
    parser.add_argument("--log", help="also check this event log: SQLAlchemy URL or SQLite path")
    parser.add_argument("--endpoint", metavar="HOST:PORT", help="also check the way to this rendezvous endpoint")
    parser.add_argument("--worker-config", metavar="FILE", help="also check this worker policy")


def run(args: argparse.Namespace) -> int:
    """Print every finding; 0 when all are fine, 1 otherwise."""
    console = PlainConsole(highlight=False, soft_wrap=True, markup=False)
    bad = 0
    for finding in findings(args.log, args.endpoint, args.worker_config):
        console.print("ok   " if finding.fine else "bad  ", style="green" if finding.fine else "red", end="")
        console.print(f"{finding.what}: {finding.detail}")
        if not finding.fine:
            console.print(f"     cure: {finding.cure}")
            bad += 1
    return int(bad > 0)


def findings(
    log: str | None = None, endpoint: str | None = None, worker_config: str | None = None
) -> Iterator[Finding]:
    """Every check in turn.

    Args:
        log: an event log to look at.
        endpoint: a rendezvous endpoint to reach, or to be served by this machine.
        worker_config: a worker policy to read.
    """
    for check in doctor_machine.CHECKS:
        yield check()
    for settings in doctor_run.CHECKS:
        yield settings()
    if worker_config is not None:
        yield doctor_run.worker_policy(worker_config)
    if endpoint is not None:
        yield doctor_run.endpoint(endpoint)
    if log is not None:
        yield from doctor_run.event_log(log)
