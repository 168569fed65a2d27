"""Agents and operators that connect to the decider: hello, admission, and listening until they go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any, Protocol

import structlog

from lmr.engine.errors import EventInvalid
from lmr.engine.events import Data, Event, NodeJoined
from lmr.integrations.torchrun import admission, announcement
from lmr.integrations.torchrun.admission import Refusal
from lmr.integrations.torchrun.committer import Fact
from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.leases import Leases
from lmr.integrations.torchrun.roster import Roster
from lmr.integrations.torchrun.sessions import Session, Sessions
from lmr.integrations.wire import AsyncChannel, WireError

log = structlog.get_logger("lmr.decider")

LINK_GRACE_MS = 300
"""How long a closed link may reconnect before its node is lost."""
PROBE_ANSWER_S = 1.0
HELLO_S = 10.0
OPERATOR_FACTS = ("operator_requested", "node_cordoned", "node_uncordoned", "policy_changed")


class Deciding(Protocol):
    """What connections need of the decider they lead to."""

    @property
    def reopened(self) -> bool:
        """No plan was dispatched since the run was opened or reopened."""

    def publish(self, data: Data, source: str = "decider") -> None:
        """Append one fact."""

    def submit(self, fact: Fact) -> None:
        """Append one fact that somebody waits for."""

    def welcome(self, session: Session) -> None:
        """This agent is in the run: tell it so, and what it is to do."""

    def heard(self, session: Session, message: dict[str, Any]) -> None:
        """One message of an agent in the run."""

    def lose(self, node: str, incarnation: str, reason: str) -> None:
        """This life of a node is over."""

    def forget(self, session: Session) -> None:
        """Its connection is of no use any more."""

    def wall_ms(self) -> int:
        """The decider's clock."""


class Connections:
    """Accepts, admits and listens.

    Args:
        config: the host agent's settings.
        local_world_size: ranks of a node.
        secret: seals the frames.
        roster: what the log says of the run.
        sessions: the connected agents.
        leases: who counts as gone.
        decider: where what they say goes.
    """

    def __init__(
        self,
        config: BackendConfig,
        local_world_size: int,
        secret: bytes,
        roster: Roster,
        sessions: Sessions,
        leases: Leases,
        decider: Deciding,
    ) -> None:
        self._config = config
        self._local_world_size = local_world_size
        self._secret = secret
        self._roster = roster
        self._sessions = sessions
        self._leases = leases
        self._decider = decider
        self._loop = asyncio.get_running_loop()
        self._joining: dict[str, list[asyncio.Future[None]]] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False

    async def serve(self, listener: socket.socket) -> None:
        """Accept on this socket from here on; it is owned."""
        self._server = await asyncio.start_server(self._accept, sock=listener, backlog=4096)

    async def stop(self) -> None:
        """Accept no more and close all that is open."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions.values()):
            session.channel.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)

    def joined(self, node: str) -> None:
        """The log says that this node has joined; who waits to welcome it may."""
        for future in self._joining.pop(node, []):
            if not future.done():
                future.set_result(None)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._keep(self._loop.create_task(work))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session: Session | None = None
        if (task := asyncio.current_task()) is not None:
            self._keep(task)
        try:
            channel = await asyncio.wait_for(AsyncChannel.open(reader, writer, self._secret, "server"), HELLO_S)
            hello = await asyncio.wait_for(channel.recv(), HELLO_S)
            if hello.get("role") == "operator":
                await self._record_request(hello, channel)
                return
            session = await self._admit(hello, channel)
            if session is not None:
                await self._listen(session)
        except (WireError, KeyError, ValueError, TypeError) as error:
            log.warning("link_refused", why=str(error), peer=str(writer.get_extra_info("peername")))
        except (OSError, EOFError, asyncio.TimeoutError):
            pass
        except asyncio.CancelledError:
            if not self._stopping:
                raise  # when it stops, asyncio's streams would print a cancelled connection as a failure
        finally:
            writer.close()
            if session is not None and self._sessions.get(session.node) is session and not self._stopping:
                self._spawn(self._closed(session))

    async def _listen(self, session: Session) -> None:
        while not session.said_goodbye:
            message = await session.channel.recv()
            session.heard = self._loop.time()
            self._decider.heard(session, message)

    async def _closed(self, session: Session) -> None:
        """A link that closed without goodbye may come back; else its node is gone."""
        if not session.said_goodbye:
            await asyncio.sleep(LINK_GRACE_MS / 1000)
        if self._sessions.get(session.node) is not session or not await self._leases.gone(session):
            return
        if self._sessions.get(session.node) is session:
            self._decider.lose(session.node, session.incarnation, "link_closed")

    async def _admit(self, hello: dict[str, Any], channel: AsyncChannel) -> Session | None:
        node, incarnation = hello["node"], hello["incarnation"]
        session = Session.of_hello(hello, channel)
        refused = (
            admission.refusal(self._config, self._local_world_size, self._roster, hello)
            or await self._twin(node, incarnation)
            or admission.no_seat(self._config, self._roster, set(self._sessions), node)
        )
        if refused is not None:
            log.info("agent_refused", node=node, reason=refused.reason)
            channel.send({"kind": "refused", **refused._asdict()})
            await channel.writer.drain()
            return None
        known = self._roster.seats.get(node)
        if known is not None and incarnation in known.lives and not self._roster.live(node, incarnation):
            channel.send({"kind": "lost"})
            await channel.writer.drain()
            return None
        self._sessions[node] = session
        if not self._roster.live(node, incarnation):
            await self._join(hello)
        session.heard = self._loop.time()
        self._decider.welcome(session)
        return session

    async def _join(self, hello: dict[str, Any]) -> None:
        """Write that this node joins, and what its vault holds; return when the log has it."""
        node = hello["node"]
        joined: asyncio.Future[None] = self._loop.create_future()
        self._joining.setdefault(node, []).append(joined)
        reopened = self._decider.reopened
        held = announcement.read(node, hello.get("held", []), reopened=reopened)
        if reopened and self._roster.generation >= 0:  # the plan may follow the join
            self._announce(node, held)
        self._decider.publish(
            NodeJoined(
                node=node,
                incarnation=hello["incarnation"],
                address=hello["address"],
                failure_domain=hello["failure_domain"],
                fingerprint=hello["fingerprint"],
            ),
            source=node,
        )
        log.info("node_joined", node=node, address=hello["address"])
        await joined
        if not reopened:
            self._announce(node, held)

    def _announce(self, node: str, held: list[Data]) -> None:
        for fact in held:
            self._decider.publish(fact, source=node)

    async def _twin(self, node: str, incarnation: str) -> Refusal | None:
        """A second live agent with one node id is refused, if the first answers."""
        first = self._sessions.get(node)
        if first is None or first.incarnation == incarnation:
            return None
        first.alive.clear()
        first.send("ping")
        try:
            await asyncio.wait_for(first.alive.wait(), PROBE_ANSWER_S)
        except asyncio.TimeoutError:
            self._decider.forget(first)
            return None
        return admission.twin(node)

    async def _record_request(self, hello: dict[str, Any], channel: AsyncChannel) -> None:
        """An operator's fact: append it, answer when it is committed."""
        answer: dict[str, Any] = {"kind": "recorded"}
        try:
            if hello["run"] != self._config.run_id or hello["type"] not in OPERATOR_FACTS:
                raise EventInvalid(hello["type"], "", "not an operator's fact for this run")
            envelope = {
                "type": hello["type"],
                "at_ms": self._decider.wall_ms(),
                "source": f"operator:{hello['by']}",
                "data": hello["data"],
            }
            event = Event.parse(envelope, strict=True)
        except EventInvalid as error:
            answer = {"kind": "refused", "reason": str(error)}
        else:
            written: asyncio.Future[None] = self._loop.create_future()
            self._decider.submit(Fact(f"operator:{hello['request']}", event, origin=written))
            await written
        channel.send(answer)
        await channel.writer.drain()
