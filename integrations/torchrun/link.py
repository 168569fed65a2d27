"""An agent's side of the link: facts out of a spool, heartbeats, decisions in.

Facts wait in the spool until the decider has committed them; after a reconnect the unacknowledged ones are sent again
with the bytes they had, so nothing is lost and nothing is doubled.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from lmr.engine.events import Data, Event
from lmr.integrations.torchrun.identity import Identity
from lmr.integrations.wire import AsyncChannel, WireError

log = structlog.get_logger("lmr.link")

RECONNECT_FIRST_S = 0.02
RECONNECT_MOST_S = 0.5
SPOOL_MOST = 100_000
"""Facts kept while nobody commits. Beyond it the oldest checkpoint facts go, which later ones replace."""


@dataclass(frozen=True)
class Spooled:
    """One fact that is not acknowledged yet."""

    counter: int
    event_id: str
    envelope: dict[str, Any]

    @property
    def expendable(self) -> bool:
        """Newer facts of the same kind make up for its loss."""
        return str(self.envelope["type"]).startswith("checkpoint_")


class Link:
    """The connection of one agent to the decider; lives on the asyncio loop.

    Args:
        identity: who speaks.
        secret: seals the frames.
        hello: what the agent says of itself when it connects.
        on_message: called for every message of the decider but acknowledgements and heartbeats.
        heartbeat_s: seconds between heartbeats.
    """

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        hello: dict[str, Any],
        on_message: Callable[[dict[str, Any]], None],
        heartbeat_s: float,
    ) -> None:
        self._identity = identity
        self._secret = secret
        self._hello = hello
        self._on_message = on_message
        self._heartbeat_s = heartbeat_s
        self._spool: deque[Spooled] = deque()
        self._counter = 0
        self._channel: AsyncChannel | None = None
        self._stopping = False
        self.dropped = 0
        self.heard = time.monotonic()
        self.refused_connections = 0
        """Connections refused in a row: the decider's process is not there."""

    @property
    def connected(self) -> bool:
        """Whether the decider has welcomed this agent on the present connection."""
        return self._channel is not None

    @property
    def backlog(self) -> int:
        """Facts the decider has not acknowledged."""
        return len(self._spool)

    def publish(self, data: Data) -> None:
        """Spool one fact and send it when there is a connection. Never waits."""
        self._counter += 1
        event_id = f"{self._identity.node}/{self._identity.incarnation}/{self._counter}"
        event = Event.of(data, at_ms=time.time_ns() // 1_000_000, source=self._identity.node)
        fact = Spooled(self._counter, event_id, event.to_json())
        self._spool.append(fact)
        if len(self._spool) > SPOOL_MOST:
            self._shrink()
        if self._channel is not None:
            self._channel.send({"kind": "facts", "facts": [[fact.event_id, fact.envelope]]})

    def _shrink(self) -> None:
        oldest = next((fact for fact in self._spool if fact.expendable), self._spool[0])
        self._spool.remove(oldest)
        self.dropped += 1
        if self.dropped == 1:
            log.error("spool_full", facts=len(self._spool), dropped_first=oldest.envelope["type"])

    def send(self, kind: str, **values: Any) -> None:
        """Send what is not a fact; dropped without a connection, since it would be stale later."""
        if self._channel is not None:
            self._channel.send({"kind": kind, **values})

    async def run(self, host: str, port: int) -> None:
        """Keep the link up until `stop`."""
        delay = RECONNECT_FIRST_S
        while not self._stopping:
            try:
                reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 2)
                self.refused_connections = 0
                await self._speak(reader, writer)
                delay = RECONNECT_FIRST_S
            except ConnectionRefusedError:
                self.refused_connections += 1
            except (WireError, KeyError, ValueError) as error:
                log.error("link_broken", why=str(error))
            except (OSError, EOFError, asyncio.TimeoutError):
                pass
            self._channel = None
            if not self._stopping:
                await asyncio.sleep(delay)
                delay = min(delay * 2, RECONNECT_MOST_S)

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        beat: asyncio.Task[None] | None = None
        try:
            channel = await asyncio.wait_for(AsyncChannel.open(reader, writer, self._secret, "client"), 5)
            channel.send({"kind": "hello", **self._hello})
            while True:
                message = await channel.recv()
                self.heard = time.monotonic()
                match message["kind"]:
                    case "welcome":
                        self._channel = channel
                        beat = asyncio.create_task(self._beat(channel))
                        if self._spool:
                            channel.send({"kind": "facts", "facts": [[f.event_id, f.envelope] for f in self._spool]})
                        self._on_message(message)
                    case "ack":
                        while self._spool and self._spool[0].counter <= message["upto"]:
                            self._spool.popleft()
                    case "heartbeat":
                        pass
                    case "ping":
                        channel.send({"kind": "alive"})
                    case _:
                        self._on_message(message)
        finally:
            if beat is not None:
                beat.cancel()
            writer.close()

    async def _beat(self, channel: AsyncChannel) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            channel.send({"kind": "heartbeat"})

    async def drain(self, timeout_s: float) -> None:
        """Wait until every spooled fact is acknowledged, at most `timeout_s`."""
        until = time.monotonic() + timeout_s
        while self._spool and self._channel is not None and time.monotonic() < until:
            await asyncio.sleep(0.01)

    async def stop(self, reason: str, timeout_s: float) -> None:
        """Say goodbye and end."""
        await self.drain(timeout_s)
        self._stopping = True
        if self._channel is not None:
            self._channel.send({"kind": "goodbye", "reason": reason})
            try:
                await asyncio.wait_for(self._channel.writer.drain(), 1)
            except (OSError, asyncio.TimeoutError):
                return
