"""The decider this agent may run: embedded because it serves the endpoint, else because it holds the run's lease."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.decider import LEASE_MS, Decider
from lmr.integrations.torchrun.election import Election
from lmr.integrations.torchrun.errors import AdmissionRefused
from lmr.integrations.torchrun.link import Locate
from lmr.integrations.torchrun.meeting import Host
from lmr.integrations.torchrun.surroundings import REAL, Surroundings
from lmr.store import ConnectionLost, EventLog, Lease

log = structlog.get_logger("lmr.hosting")

LOOK_AGAIN_S = 0.1
OPEN_AGAIN_S = 0.5
OTHERS_LEAVE_S = 20.0
"""How long the decider of a closed run waits for the other agents to go."""


class Hosting:
    """This agent as the run's decider, or as one that may become it.

    Args:
        config: checked settings.
        local_world_size: ranks of a node.
        writer: this agent, as `node/incarnation`.
        address: what peers reach this node by.
        on_end: called with a reason when this agent cannot go on.
        spawn: runs a coroutine for as long as the runtime lives.
        surroundings: clocks, logs and sockets.
    """

    def __init__(
        self,
        config: BackendConfig,
        local_world_size: int,
        writer: str,
        address: str,
        on_end: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        surroundings: Surroundings = REAL,
    ) -> None:
        self._config = config
        self._local_world_size = local_world_size
        self._writer = writer
        self._address = address
        self._on_end = on_end
        self._spawn = spawn
        self._around = surroundings
        self._secret = b""
        self._event_log: EventLog | None = None
        self._decider: Decider | None = None
        self._election: Election | None = None

    @property
    def can_move(self) -> bool:
        """Whether another agent can take over; embedded, the log is on the host's disk and nobody can."""
        return self._election is not None

    def admitted(self) -> None:
        """The run took this agent: it may take a lapsed lease over at once."""
        if self._election is not None:
            self._election.member = True

    async def serve(self, secret: bytes) -> Host:
        """Embedded: decide, with the log on this agent's own disk. Returns what the others must know.

        Raises:
            AdmissionRefused: a live agent decides this run.
            StoreError: the event log cannot be opened.
        """
        self._secret = secret
        self._config.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._event_log = await asyncio.to_thread(self._around.open_log, self._config.log_location)
        listener = self._around.listen()
        port = int(listener.getsockname()[1])
        lease = await self._acquire_lease(self._event_log, f"{self._address}:{port}")
        await self._decide(lease.epoch, listener, True)
        self._leave_secret_to_operator(secret)
        return Host(self._address, port, b"" if self._config.secret is not None else secret)

    async def _acquire_lease(self, event_log: EventLog, address: str) -> Lease:
        """The run's lease; a predecessor that died without giving it back is waited out."""
        run_id, loop = self._config.run_id, asyncio.get_running_loop()
        until = loop.time() + 2 * LEASE_MS / 1000

        def acquire() -> Lease | None:
            return event_log.acquire_lease(run_id, holder=self._writer, address=address, ttl_ms=LEASE_MS)

        while (lease := await asyncio.to_thread(acquire)) is None:
            if loop.time() > until:
                held = await asyncio.to_thread(event_log.lease, run_id)
                raise AdmissionRefused(f"run {run_id!r} is decided by {held.holder if held else 'another agent'}")
            await asyncio.sleep(LOOK_AGAIN_S)
        return lease

    async def open_log(self) -> None:
        """Open the log on the database server; one that is away is waited for, as the endpoint is.

        Raises:
            StoreError: it cannot be opened, or not within the join timeout.
        """
        loop, wait_s = asyncio.get_running_loop(), self._config.join_timeout_ms / 1000
        until, said = loop.time() + wait_s, False
        while True:
            try:
                self._event_log = await asyncio.to_thread(self._around.open_log, self._config.log_location)
            except ConnectionLost as error:
                if loop.time() > until:
                    raise
                if not said:
                    log.warning("event_log_away", why=str(error), waits_for_s=round(wait_s))
                    said = True
                await asyncio.sleep(OPEN_AGAIN_S)
            else:
                return

    def stand(self, secret: bytes) -> Locate:
        """Whoever holds the lease decides, and another takes over when it lapses. Returns how the decider is found."""
        assert self._event_log is not None
        self._secret = secret
        self._election = Election(
            self._event_log,
            self._config.run_id,
            self._writer,
            self._address,
            self._lease_ms(),
            self._decide,
            self._around.listen,
        )
        return self._election.locate

    def _lease_ms(self) -> int:
        """Embedded, nobody competes; else a decider's loss is noticed about as fast as a node's."""
        return LEASE_MS if self._config.embedded else self._config.heartbeat_timeout_ms * 3 // 2

    async def _decide(self, epoch: int, listener: socket.socket, reopen: bool) -> None:
        assert self._event_log is not None
        decider = Decider(
            self._config,
            self._local_world_size,
            self._event_log,
            epoch,
            self._writer,
            self._secret,
            lease_ms=self._lease_ms(),
            on_fenced=self._fenced_off,
            surroundings=self._around,
        )
        await decider.start(listener, reopen=reopen)
        self._decider = decider

    def _fenced_off(self, reason: str) -> None:
        """Another decider took over: this agent goes on as a member; embedded there can be none, so it ends."""
        if self._election is None:
            self._on_end(f"the decider cannot go on: {reason}")
            return
        log.warning("no_longer_decides", why=reason)
        self._election.step_down()
        decider, self._decider = self._decider, None
        if decider is not None:
            self._spawn(decider.stop(None))

    def _leave_secret_to_operator(self, secret: bytes) -> None:
        """Without a secret file, `lmr halt` and the like read the run's secret here; owner-only."""
        if self._config.secret is None:
            path = self._config.state_folder / "decider.json"
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"run": self._config.run_id, "secret": secret.hex()}, file)

    async def stop(self, reason: str, *, run_closed: bool) -> None:
        """Decide no more and close the log; after the end of a run, first let the others go."""
        if self._decider is not None:
            until = asyncio.get_running_loop().time() + (OTHERS_LEAVE_S if run_closed else 0)
            while not self._decider.finished and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(0.02)
            await self._decider.stop(reason if self._election is None else None)
        if self._event_log is not None:
            await asyncio.to_thread(self._event_log.close)


def fresh_secret() -> bytes:
    """The secret of a run whose operator gave none; said once."""
    log.warning("no_secret_file", why="LM_RESILIENCY_SECRET_FILE is not set; the run's secret is in its store")
    return secrets.token_bytes(32)
