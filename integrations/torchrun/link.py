"""An agent's side of the link: facts out of a spool, heartbeats, decisions in.

Facts wait in the spool until the decider has committed them; after a reconnect the unacknowledged ones are sent again
with the bytes they had, so nothing is lost and nothing is doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from lmr.engine.events import Data, Event
from lmr.integrations.torchrun.clock import SYSTEM, Clock
from lmr.integrations.torchrun.identity import Identity
from lmr.integrations.torchrun.spool import Spool, Spooled
from lmr.integrations.wire import AsyncChannel, WireError

log = structlog.get_logger("lmr.link")

RECONNECT_FIRST_S = 0.02
RECONNECT_MOST_S = 0.5
CHUNK_FACTS = 500
"""Facts a message carries at most when many are sent again."""

Locate = Callable[[], Awaitable[tuple[str, int]]]
"""Finds the decider. Raises OSError while there is none; the link asks again."""


class Link:
    """The connection of one agent to the decider; lives on the asyncio loop.

    Args:
        identity: who speaks.
        secret: seals the frames.
        hello: what the agent says of itself when it connects.
        on_message: called for every message of the decider but acknowledgements and heartbeats.
        heartbeat_s: seconds between heartbeats.
        silence_s: a connection that says nothing for so long is given up and the decider looked for anew; None: never.
        clock: this process's clocks.
    """

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        hello: dict[str, Any],
        on_message: Callable[[dict[str, Any]], None],
        heartbeat_s: float,
        silence_s: float | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._identity = identity
        self._secret = secret
        self._hello = hello
        self._on_message = on_message
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._clock = clock
        self._spool = Spool()
        self._counter = 0
        self._channel: AsyncChannel | None = None
        self._stopping = False
        self._outage: str | None = None
        self.heard = clock.monotonic()
        """When something was sent that the decider has answered: from then on it counts this node's lease at least."""
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
        event = Event.of(data, at_ms=self._clock.wall_ms(), source=self._identity.node)
        fact = Spooled(self._counter, event_id, event.to_json())
        if self._spool.push(fact) and self._channel is not None:
            self._send_facts(self._channel, [fact])

    @staticmethod
    def _send_facts(channel: AsyncChannel, facts: Iterable[Spooled]) -> None:
        waiting = [[fact.event_id, fact.envelope] for fact in facts]
        for start in range(0, len(waiting), CHUNK_FACTS):
            channel.send({"kind": "facts", "facts": waiting[start : start + CHUNK_FACTS]})

    def send(self, kind: str, **values: Any) -> None:
        """Send what is not a fact; dropped without a connection, since it would be stale later."""
        if self._channel is not None:
            self._channel.send({"kind": kind, **values})

    async def run(self, locate: Locate) -> None:
        """Keep the link up until `stop`."""
        delay = RECONNECT_FIRST_S
        while not self._stopping:
            try:
                host, port = await locate()
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
            said_hello = self._clock.monotonic()
            channel.send({"kind": "hello", **self._hello})
            while True:
                message = await asyncio.wait_for(channel.recv(), self._silence_s)
                if self._stopping:
                    return
                match message["kind"]:
                    case "welcome":
                        self._channel = channel
                        self.heard = said_hello
                        beat = asyncio.create_task(self._beat(channel))
                        self._send_facts(channel, self._spool.in_memory())
                        self._on_message(message)
                    case "ack":
                        self._send_facts(channel, self._spool.acknowledge(message["upto"]))
                    case "heartbeat":
                        self._note_outage(message["outage"])
                        if not message["alone"]:  # a decider that may have been replaced is as good as none
                            self.heard = message["sent_s"]
                    case "ping":
                        channel.send({"kind": "alive"})
                    case _:
                        self._on_message(message)
        finally:
            if beat is not None:
                beat.cancel()
            writer.close()

    def _note_outage(self, why: str | None) -> None:
        if (why is None) != (self._outage is None):
            log.warning("event_log_outage" if why else "event_log_back", why=why, facts_waiting=len(self._spool))
        self._outage = why

    async def _beat(self, channel: AsyncChannel) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            channel.send({"kind": "heartbeat", "sent_s": self._clock.monotonic()})

    def abandon(self) -> None:
        """This life of the agent is over: never connect again, and hear nothing more.

        Cancelling the task is not enough: `asyncio.wait_for` loses a cancellation that meets the end of the connection
        (Python 3.11 and older), and the link would come back under the name of the former life.
        """
        self._stopping = True

    async def drain(self, timeout_s: float) -> None:
        """Wait until every spooled fact is acknowledged, at most `timeout_s`."""
        until = self._clock.monotonic() + timeout_s
        while len(self._spool) and self._channel is not None and self._clock.monotonic() < until:
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
