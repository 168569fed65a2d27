"""Who decides, when the event log is a database server: the holder of the run's lease, and anybody may take it.

The lease row says where the decider is reached. Members of the run take a lapsed lease at once and go on; an agent that
never was a member gives them time first, and reopens the run when none of them is left.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import structlog

from lmr.store import EventLog, StoreError

log = structlog.get_logger("lmr.election")

NEWCOMER_PATIENCE = 3
"""Lease lengths a newcomer leaves a lapsed lease to the run's members."""

StartDecider = Callable[[int, socket.socket, bool], Awaitable[None]]
"""Serve under an epoch, on a listener; the flag says whether the run is reopened."""
Listen = Callable[[], socket.socket]


class Election:
    """Finds the decider, or becomes it.

    Args:
        event_log: open log on the database server.
        run_id: the run.
        writer: this agent, as `node/incarnation`.
        address: what peers reach this node by.
        ttl_ms: length of the lease.
        start: called when this agent has won.
        listen: makes a listening socket on any port.
    """

    def __init__(
        self,
        event_log: EventLog,
        run_id: str,
        writer: str,
        address: str,
        ttl_ms: int,
        start: StartDecider,
        listen: Listen,
    ) -> None:
        self._log = event_log
        self._run_id = run_id
        self._writer = writer
        self._address = address
        self._ttl_ms = ttl_ms
        self._start = start
        self._listen = listen
        self._serving: tuple[str, int] | None = None
        self.member = False
        """Whether the run has admitted this agent; set by the owner."""

    def step_down(self) -> None:
        """This agent decides no more."""
        self._serving = None

    async def locate(self) -> tuple[str, int]:
        """Where the decider is.

        Raises:
            OSError: nobody decides yet, or the database cannot be asked.
        """
        if self._serving is not None:
            return self._serving
        try:
            return await asyncio.to_thread(self._holder) or await self._stand()
        except StoreError as error:
            raise ConnectionError(str(error)) from error

    def _holder(self) -> tuple[str, int] | None:
        lease = self._log.lease(self._run_id)
        if lease is None:
            return None
        lapsed_ms = self._log.now_ms() - lease.expires_at_ms
        if lapsed_ms < 0 and lease.holder != self._writer:
            host, _, port = lease.address.rpartition(":")
            return host, int(port)
        if not self.member and 0 <= lapsed_ms < NEWCOMER_PATIENCE * self._ttl_ms and self._log.head(self._run_id).seq:
            raise ConnectionError("the run's members may take the lease over")
        return None

    async def _stand(self) -> tuple[str, int]:
        listener = self._listen()
        port = int(listener.getsockname()[1])
        lease = await asyncio.to_thread(
            lambda: self._log.acquire_lease(
                self._run_id, holder=self._writer, address=f"{self._address}:{port}", ttl_ms=self._ttl_ms
            )
        )
        if lease is None:
            listener.close()
            raise ConnectionError("another agent was faster")
        log.info("decides", epoch=lease.epoch, address=lease.address)
        await self._start(lease.epoch, listener, not self.member)
        self._serving = ("127.0.0.1", port)
        return self._serving


def listen() -> socket.socket:
    """A listening socket on every interface, any port."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=dual, backlog=4096)
