"""What `lmr doctor` asks of a run's settings: identity, secret, policy, endpoint, event log."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from lmr.integrations.operate.finding import Finding
from lmr.store import (
    EventLog,
    ForeignDatabase,
    LogReadOnly,
    LogUnavailable,
    SchemaNewer,
    SchemaOlder,
    StoreError,
    open_log,
)
from lmr.store.opening import open_database
from lmr.store.upgrading import current

CLOCK_APART_MS = 1_000
"""Deadlines are kept by the database's clock and waited for by this machine's: so late may they fall."""
SLOW_LOG_MS = 100
"""A decision waits for a few round trips."""
MAY_CREATE = text("SELECT current_schema(), has_schema_privilege(current_schema(), 'CREATE')")
CURES: tuple[tuple[type[StoreError], str], ...] = (
    (SchemaOlder, "lmr db upgrade LOG, with no run under way"),
    (SchemaNewer, "install the version of lm-resiliency-engine that wrote it, or a newer one"),
    (ForeignDatabase, "name an empty database or schema, or a path of its own"),
    (LogReadOnly, "name the primary server, and a role that may write"),
    (LogUnavailable, "start the server, or correct host, port, name, user and password in the URL; see the message"),
)


def node() -> Finding:
    """What this machine is called in a run."""
    from lmr.integrations.torchrun.errors import ConfigInvalid
    from lmr.integrations.torchrun.identity import node_id

    try:
        return Finding("node id", fine=True, detail=node_id())
    except ConfigInvalid as error:
        return Finding("node id", fine=False, detail=str(error), cure="unset LM_RESILIENCY_NODE_ID, or name it so")


def secret() -> Finding:
    """The file that keys all connections."""
    name = os.environ.get("LM_RESILIENCY_SECRET_FILE")
    if not name:
        detail = "no LM_RESILIENCY_SECRET_FILE: a run's secret is in its rendezvous store, for all who reach that"
        return Finding("secret", fine=True, detail=detail)
    cure = f"head -c 32 /dev/urandom | base64 > {name}; chmod 600 {name}; the same file on every node"
    try:
        mode, size = Path(name).stat().st_mode, len(Path(name).read_bytes().strip())
    except OSError as error:
        return Finding("secret", fine=False, detail=f"{name}: {error.strerror}", cure=cure)
    if size < 16:
        return Finding("secret", fine=False, detail=f"{name} holds {size} bytes, at least 16 are needed", cure=cure)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return Finding("secret", fine=False, detail=f"{name} can be read by others", cure=f"chmod 600 {name}")
    return Finding("secret", fine=True, detail=name)


CHECKS: tuple[Callable[[], Finding], ...] = (node, secret)


def worker_policy(name: str) -> Finding:
    """The policy file, read as an agent reads it."""
    from lmr.integrations.torchrun.errors import ConfigInvalid
    from lmr.integrations.torchrun.worker_policy import load_worker_policy

    try:
        load_worker_policy(Path(name))
    except ConfigInvalid as error:
        return Finding("worker policy", fine=False, detail=str(error), cure="correct it; docs/api.md has every key")
    return Finding("worker policy", fine=True, detail=name)


def endpoint(text: str) -> Finding:
    """The endpoint answers, or this machine can serve it."""
    host, _, port = text.rpartition(":")
    what = "endpoint"
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        return Finding(what, fine=False, detail=f"{text!r} is not HOST:PORT", cure="as in --rdzv-endpoint=node-1:29400")
    try:
        address = str(socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        cure = "use a name that every node resolves to the same machine, or its address"
        return Finding(what, fine=False, detail=f"{host}: {error}", cure=cure)
    try:
        with socket.create_connection((address, int(port)), timeout=3) as connection:
            mine = connection.getsockname()[0]
            return Finding(what, fine=True, detail=f"{text} answers; other nodes reach this machine by {mine}")
    except ConnectionRefusedError:
        return _servable(text, address, int(port))
    except OSError as error:
        cure = f"open TCP port {port} of {host} to this machine"
        return Finding(what, fine=False, detail=f"{text}: {error}", cure=cure)


def _servable(text: str, address: str, port: int) -> Finding:
    """Nobody listens yet; fine if that is this machine and the port may be taken."""
    try:
        with socket.create_server((address, port)):
            detail = f"{text} is this machine, and the port is free: it will serve the rendezvous"
            return Finding("endpoint", fine=True, detail=detail)
    except OSError:
        cure = "start the agent on that machine, and look whether the name is right"
        return Finding("endpoint", fine=False, detail=f"{text}: nobody listens there yet", cure=cure)


def event_log(name: str) -> Iterator[Finding]:
    """The log can be opened and written, or made; it is near, and its clock is ours."""
    file = Path(name.removeprefix("sqlite:///")) if "://" not in name or name.startswith("sqlite:///") else None
    try:
        if file is not None and (not file.exists() or current(file).standing == "empty"):
            yield _new_file(file)
        elif file is None and current(name).standing == "empty":
            yield _new_schema(name)
        else:
            with open_log(name, create=False) as log:
                runs = len(log.runs())
                yield Finding("event log", fine=True, detail=f"{log.url}: {runs} {'run' if runs == 1 else 'runs'}")
                yield from _clock_and_way(log)
    except StoreError as error:
        cure = next((cure for kind, cure in CURES if isinstance(error, kind)), "lmr db check LOG says more")
        yield Finding("event log", fine=False, detail=str(error), cure=cure)


def _new_schema(url: str) -> Finding:
    """A database without a log: the first agent of a run makes it, if its role may."""
    with closing(open_database(url, create=False, read_only=True)) as database, database.read() as connection:
        schema, may = connection.execute(MAY_CREATE).one()
        shown = database.url
    if may:
        return Finding("event log", fine=True, detail=f"{shown} holds none yet; the first agent of a run makes it")
    cure = f"GRANT CREATE ON SCHEMA {schema or 'public'} TO the role of the URL, or have its owner say lmr db upgrade"
    return Finding("event log", fine=False, detail=f"{shown} holds none yet, and this role may not make it", cure=cure)


def _new_file(path: Path) -> Finding:
    folder = path.absolute().parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return Finding("event log", fine=True, detail=f"{path} is not there yet; its folder can be written")
    cure = f"make the folder {folder}, writable for the user that runs torchrun"
    return Finding("event log", fine=False, detail=f"{path} cannot be made", cure=cure)


def _clock_and_way(log: EventLog) -> Iterator[Finding]:
    trips = []
    apart_ms = 0
    for _ in range(5):
        before = time.time_ns()
        theirs_ms = log.now_ms()
        after = time.time_ns()
        trips.append((after - before) // 1_000_000)
        apart_ms = theirs_ms - (before + after) // 2_000_000
    trip_ms = sorted(trips)[len(trips) // 2]
    cure = "keep both machines' clocks with chrony or systemd-timesyncd"
    yield Finding("log's clock", abs(apart_ms) <= CLOCK_APART_MS, f"{apart_ms} ms ahead of this machine's", cure)
    cure = "move the database nearer: each decision waits for a few round trips"
    yield Finding("way to the log", trip_ms <= SLOW_LOG_MS, f"{trip_ms} ms for a query", cure)
