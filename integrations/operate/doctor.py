"""Check this machine's set-up before a job depends on it. Each failing line says the cure."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lmr.store import StoreError

MEMORY_LEAST_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class Finding:
    """One check: what was looked at, whether it is fine, and the cure when not."""

    what: str
    fine: bool
    detail: str
    cure: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr doctor`."""
    parser.add_argument("--log", help="also check this event log: SQLAlchemy URL or SQLite path")
    parser.add_argument("--endpoint", metavar="HOST:PORT", help="also check the way to this rendezvous endpoint")


def run(args: argparse.Namespace) -> int:
    """Print every finding; 0 when all are fine, 1 otherwise."""
    console = Console(highlight=False, soft_wrap=True)
    bad = 0
    for finding in findings(args.log, args.endpoint):
        mark = "[green]ok[/]  " if finding.fine else "[red]bad[/] "
        console.print(
            f"{mark} {finding.what}: {finding.detail}" + (f"\n      cure: {finding.cure}" if not finding.fine else "")
        )
        bad += not finding.fine
    return int(bad > 0)


def findings(log: str | None = None, endpoint: str | None = None) -> Iterator[Finding]:
    """Every check in turn."""
    checks: list[Callable[[], Finding]] = [_linux, _torch, _entry_point, _memory, _abstract_socket]
    for check in checks:
        yield check()
    if log is not None:
        yield _event_log(log)
    if endpoint is not None:
        yield _endpoint(endpoint)


def _linux() -> Finding:
    return Finding("operating system", sys.platform == "linux", sys.platform, "the supervisor and the vault need Linux")


def _torch() -> Finding:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", fine=False, detail="not installed", cure="pip install 'lm-resiliency-engine[torch]'")
    fine = tuple(int(part) for part in version.split("+")[0].split(".")[:2]) >= (2, 13)
    return Finding("torch", fine, version, "the backend is written for torch 2.13 and newer")


def _entry_point() -> Finding:
    found = [p for p in importlib.metadata.entry_points(group="torchrun.handlers") if p.name == "lm_resiliency"]
    values = sorted({f"{p.value} ({p.dist.name if p.dist else '?'})" for p in found})
    if not values:
        return Finding(
            "torchrun backend", fine=False, detail="not registered", cure="install the package, not its folder"
        )
    cure = "torchrun takes the first it finds: uninstall the other distribution"
    return Finding("torchrun backend", len(values) == 1, ", ".join(values), cure)


def _memory() -> Finding:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cure = "the vault keeps several copies of each rank's state in memory: see docs/state.md for the bound"
    return Finding("free memory", available >= MEMORY_LEAST_BYTES, f"{available / 1024**3:.1f} GiB", cure)


def _abstract_socket() -> Finding:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.bind(f"\0lmr-doctor-{os.getpid()}")
    except OSError as error:
        return Finding(
            "local sockets", fine=False, detail=str(error), cure="allow abstract Unix sockets in this sandbox"
        )
    return Finding("local sockets", fine=True, detail="abstract SOCK_SEQPACKET works")


def _event_log(log: str) -> Finding:
    from lmr.store import open_log

    try:
        with open_log(log, create=False, read_only=True) as opened:
            return Finding("event log", fine=True, detail=f"{opened.url}: {len(opened.runs())} runs")
    except StoreError as error:
        cure = "see the message; lmr db check says more" if Path(log).exists() or "://" in log else "check the path"
        return Finding("event log", fine=False, detail=str(error), cure=cure)


def _endpoint(endpoint: str) -> Finding:
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=3) as connection:
            return Finding(
                "endpoint", fine=True, detail=f"{endpoint} answers; this machine is {connection.getsockname()[0]}"
            )
    except (OSError, ValueError) as error:
        cure = "start the rendezvous host first, or open the port between the machines"
        return Finding("endpoint", fine=False, detail=f"{endpoint}: {error}", cure=cure)
