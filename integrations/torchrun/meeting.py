"""Where the agents of a run meet: whoever binds the endpoint hosts the run, the others find the host there.

With `store_type=tcp` the meeting place is a c10d TCPStore at the endpoint; with `store_type=file` it is the file the
endpoint names, for agents of one machine. Only the host's address and, without a secret file, the run's secret are kept
there: no decision and no state.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import structlog

from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.errors import MeetingFailed
from lmr.integrations.torchrun.identity import address_towards

DEFAULT_PORT = 29400
LOOK_AGAIN_S = 0.05
SAY_AFTER_S = 3.0
"""A host may start a little later than the others; who waits longer says so."""

log = structlog.get_logger("lmr.meeting")


@dataclass(frozen=True)
class Host:
    """Where the decider is reached, and the secret that seals the frames."""

    address: str
    port: int
    secret: bytes
    embedded: bool = True


class Meeting(Protocol):
    """One way of meeting. `serves` is true for the agent that hosts the run."""

    serves: bool
    host_name: str
    host_port: int

    def announce(self, host: Host) -> None:
        """Make the host known; only the serving agent calls it."""

    def find(self, until: float) -> Host:
        """The announced host, waiting until `until` (monotonic seconds).

        Raises:
            MeetingFailed: nobody announced one in time.
        """

    def close(self) -> None:
        """Leave the meeting place."""


def meet(config: BackendConfig, cancelled: Callable[[], bool] = lambda: False) -> Meeting:
    """Host the meeting place or join it, by the user's endpoint.

    Raises:
        MeetingFailed: the endpoint is malformed, cannot be bound though `is_host`, or cannot be reached in time.
    """
    until = time.monotonic() + config.join_timeout_ms / 1000
    if config.store_type == "file":
        return FileMeeting(Path(config.endpoint), config.run_id)
    host, port = _parse(config.endpoint)
    if config.is_host is not False and (config.is_host or _is_this_machine(host)):
        try:
            return TcpMeeting(config.run_id, host, port, serves=True)
        except _AddressTaken as taken:
            if config.is_host:
                raise MeetingFailed(f"--rdzv-endpoint: {host}:{port} is taken though is_host=true: {taken}") from None
    say_at = time.monotonic() + SAY_AFTER_S
    while (why := _unreachable(host, port)) is not None:
        now = time.monotonic()
        if now > until or cancelled():
            raise MeetingFailed(f"--rdzv-endpoint: nobody listens at {host}:{port} within the join timeout ({why})")
        if now > say_at:
            log.warning("host_awaited", endpoint=f"{host}:{port}", why=why, waits_for_s=round(until - now))
            say_at = until
        time.sleep(LOOK_AGAIN_S)
    return TcpMeeting(config.run_id, host, port, serves=False)


class _AddressTaken(Exception):
    pass


class TcpMeeting:
    """A TCPStore at the endpoint.

    Args:
        run_id: runs at one endpoint are kept apart by it.
        host: endpoint host.
        port: endpoint port.
        serves: bind and serve, or connect.

    Raises:
        MeetingFailed: the store cannot be reached.
    """

    def __init__(self, run_id: str, host: str, port: int, *, serves: bool) -> None:
        from torch._C._distributed_c10d import TCPStore
        from torch.distributed import DistNetworkError

        self.serves = serves
        self.host_name = host
        self.host_port = port
        self._run_id = run_id
        self._key = f"lmr/{run_id}/host"
        bind = None
        if serves:
            bind = _bind(port)
        try:
            self._store: Any = TCPStore(
                "localhost" if serves else host,
                port,
                is_master=serves,
                wait_for_workers=False,
                timeout=timedelta(seconds=30),
                master_listen_fd=bind.detach() if bind is not None else None,
            )
        except (DistNetworkError, RuntimeError) as error:
            raise MeetingFailed(f"--rdzv-endpoint: {host}:{port}: {str(error).splitlines()[0]}") from None

    def announce(self, host: Host) -> None:
        """See `Meeting`."""
        self._store.set(self._key, _host_json(host))

    def find(self, until: float) -> Host:
        """See `Meeting`."""
        say_at = time.monotonic() + SAY_AFTER_S
        while (now := time.monotonic()) < until:
            try:
                if self._store.check([self._key]):
                    return _host_from(self._store.get(self._key))
            except RuntimeError as error:
                raise MeetingFailed(f"the rendezvous host went away: {str(error).splitlines()[0]}") from None
            if now > say_at:
                endpoint, why = f"{self.host_name}:{self.host_port}", f"no run {self._run_id!r} is announced there yet"
                log.warning("host_awaited", endpoint=endpoint, why=why, waits_for_s=round(until - now))
                say_at = until
            time.sleep(LOOK_AGAIN_S)
        raise MeetingFailed(f"no run {self._run_id!r} was announced at {self.host_name}:{self.host_port}")

    def close(self) -> None:
        """See `Meeting`."""
        self._store = None


class FileMeeting:
    """The endpoint is a path; whoever holds its lock is the host.

    Args:
        path: the endpoint; a file `PATH.lock` appears beside it.
        run_id: the announcement is only valid for this run.

    Raises:
        MeetingFailed: the folder cannot be written.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self._path = path
        self._run_id = run_id
        self.host_name = "localhost"
        self.host_port = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MeetingFailed(f"--rdzv-endpoint: {path}: {error.strerror}") from None
        self.serves = self._try_lock()

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise MeetingFailed(f"--rdzv-endpoint: {self._path}: cannot lock: {error.strerror}") from None
        return True

    def announce(self, host: Host) -> None:
        """See `Meeting`."""
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps({"run": self._run_id, "pid": os.getpid(), "host": json.loads(_host_json(host))}))
        fresh.replace(self._path)

    def find(self, until: float) -> Host:
        """See `Meeting`."""
        while time.monotonic() < until:
            try:
                told = json.loads(self._path.read_text())
                if told["run"] == self._run_id and Path(f"/proc/{told['pid']}").exists():
                    return _host_from(json.dumps(told["host"]).encode())
            except (OSError, ValueError, KeyError, TypeError):
                pass
            time.sleep(LOOK_AGAIN_S)
        raise MeetingFailed(f"no run {self._run_id!r} was announced in {self._path}")

    def close(self) -> None:
        """See `Meeting`."""
        if self.serves:
            self._path.unlink(missing_ok=True)
            self._path.with_name(self._path.name + ".lock").unlink(missing_ok=True)
        os.close(self._lock)


def _host_json(host: Host) -> str:
    return json.dumps(
        {"address": host.address, "port": host.port, "secret": host.secret.hex(), "embedded": host.embedded}
    )


def _host_from(raw: bytes) -> Host:
    told = json.loads(raw)
    return Host(told["address"], told["port"], bytes.fromhex(told["secret"]), told["embedded"])


def _parse(endpoint: str) -> tuple[str, int]:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    try:
        return parse_rendezvous_endpoint(endpoint, default_port=DEFAULT_PORT)
    except ValueError as error:
        raise MeetingFailed(f"--rdzv-endpoint: {error}") from None


def _is_this_machine(host: str) -> bool:
    """Whether a name or address is this machine's, that of any of its networks: torch asks only for its host name's."""
    from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname

    if _matches_machine_hostname(host):
        return True
    try:
        found = {str(where[0]) for *_, where in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)}
    except OSError:
        return False
    return any(address_towards(address, 1) == address for address in found)


def _bind(port: int) -> socket.socket:
    """A listening socket on all interfaces, so that a taken port is one clear error and not torch's retries."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _AddressTaken(error.strerror) from None
        raise MeetingFailed(f"--rdzv-endpoint: port {port}: {error.strerror}") from None


def _unreachable(host: str, port: int) -> str | None:
    """Why no connection can be made; None when somebody listens."""
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
