"""The decider: the one agent that admits nodes, keeps leases, writes the log and pushes decisions.

It runs on the asyncio loop of the agent that hosts the run. Everything it remembers besides the log (connections,
leases, the arrival barrier, pins) is transport: lose it and the agents say it again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import structlog

from lmr.engine.errors import EventInvalid
from lmr.engine.events import (
    ConfigDrifted,
    Data,
    Event,
    NodeConfirmed,
    NodeCordoned,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeUncordoned,
    PlanCommitted,
    RunClosed,
    RunOpened,
    RunReopened,
    WorkerExited,
)
from lmr.engine.plan import Plan
from lmr.engine.record import Record
from lmr.integrations.torchrun import admission
from lmr.integrations.torchrun.barrier import Barrier
from lmr.integrations.torchrun.committer import Committed, Committer, Fact
from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.connections import Connections
from lmr.integrations.torchrun.errors import AdmissionRefused
from lmr.integrations.torchrun.leases import Leases
from lmr.integrations.torchrun.observation import Observation
from lmr.integrations.torchrun.orders import Dispatch
from lmr.integrations.torchrun.roster import Roster
from lmr.integrations.torchrun.sessions import Session, Sessions
from lmr.integrations.torchrun.surroundings import REAL, Surroundings
from lmr.store import EventLog, StoreError

log = structlog.get_logger("lmr.decider")

TICK_S = 0.05
OBSERVE_TICKS = 5
PAUSE_S = 0.5
"""A gap between two ticks that means this process was stopped; leases then start anew."""
MOVING = ("start", "restart", "replace")
"""Actions that order a new generation."""
LEASE_MS = 5_000


class Decider:
    """Serves the links of a run.

    Args:
        config: the host agent's settings; they open the run.
        local_world_size: ranks of a node.
        event_log: the open log; the caller closes it.
        epoch: of the lease the caller acquired.
        writer: this agent, as `node/incarnation`.
        secret: seals the frames.
        lease_ms: how long the lease is renewed for.
        on_fenced: called on the loop with a reason when another decider has taken over.
        surroundings: clocks, and what drives the committer.
    """

    def __init__(
        self,
        config: BackendConfig,
        local_world_size: int,
        event_log: EventLog,
        epoch: int,
        writer: str,
        secret: bytes,
        lease_ms: int,
        on_fenced: Callable[[str], None],
        surroundings: Surroundings = REAL,
    ) -> None:
        self._config = config
        self._local_world_size = local_world_size
        self._writer = writer
        self._on_fenced = on_fenced
        self._loop = asyncio.get_running_loop()
        self._event_log = event_log
        self._epoch = epoch
        self._lease_ms = lease_ms
        self._counter = 0
        self._roster = Roster()
        self._dispatch: Dispatch | None = None
        self._history = ""
        self._sessions = Sessions()
        self._leases = Leases(
            self._roster, self._sessions, config.heartbeat_timeout_ms / 1000, asyncio.get_running_loop().time()
        )
        self._barrier = Barrier(-1)
        self._observation = Observation(config, local_world_size, self._roster, self._sessions, self.publish)
        self._connections = Connections(
            config, local_world_size, secret, self._roster, self._sessions, self._leases, decider=self
        )
        self._probed_generation = -2
        self._outage: str | None = None
        self._watching: asyncio.Task[None] | None = None
        self._committer = Committer(
            event_log,
            config.run_id,
            epoch,
            writer,
            lease_ms,
            on_commit=lambda done: self._later(self._committed, done),
            on_outage=lambda why: self._later(self._log_outage, why),
            on_fenced=lambda why: self._later(self._on_fenced, f"another decider took over: {why}"),
            clock=surroundings.clock,
        )
        self.wall_ms = surroundings.clock.wall_ms
        self._writing = surroundings.drive(self._committer)

    def _later(self, call: Callable[..., None], value: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, value)

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self, listener: socket.socket, *, reopen: bool) -> None:
        """Open the run, reopen it or take it over, and serve on `listener`.

        Args:
            listener: owned from here on.
            reopen: nobody of an open run's nodes is left; otherwise they are expected to come back to this decider.

        Raises:
            AdmissionRefused: the run was opened for other numbers of nodes and ranks.
            StoreError: the log cannot be read.
        """
        for record in self._committer.load():
            self._take(record)
        if (refused := admission.reshaped(self._config, self._local_world_size, self._roster)) is not None:
            await asyncio.to_thread(self._give_back)
            raise AdmissionRefused(refused.reason, refused.exit_code)
        self._writing.start()
        if self._roster.opened is None:
            self.publish(self._opening())
        elif self._roster.closed is None and reopen:
            log.info("run_reopened", run=self._config.run_id)
            self._dispatch = None
            self.publish(RunReopened(run_id=self._config.run_id))
        elif self._dispatch is not None:
            self._begin(self._dispatch.plan)
        self._leases.start_anew(self._loop.time())
        await self._connections.serve(listener)
        self._watching = self._loop.create_task(self._watch())

    def _opening(self) -> RunOpened:
        policy = self._config.worker_policy
        return RunOpened(
            run_id=self._config.run_id,
            min_nodes=self._config.min_nodes,
            max_nodes=self._config.max_nodes,
            local_world_size=self._local_world_size,
            detection=policy.enable_detection,
            checkpointing=policy.enable_checkpoint,
            policy=policy.recovery.table(),
        )

    @property
    def finished(self) -> bool:
        """The run is closed and everybody else has gone."""
        return self._roster.closed is not None and len(self._sessions) <= 1

    async def stop(self, reason: str | None) -> None:
        """Serve no more and give the lease back. With a reason, everybody is told that nobody decides from here on."""
        if reason is not None:
            for session in list(self._sessions.values()):
                session.send("decider_gone", reason=reason)
            await asyncio.sleep(0.05)
        if self._watching is not None:
            self._watching.cancel()
        await self._connections.stop()
        await self._writing.stop()
        await asyncio.to_thread(self._give_back)

    def _give_back(self) -> None:
        try:
            self._event_log.release_lease(self._config.run_id, self._epoch)
        except StoreError as error:
            log.warning("lease_not_released", why=str(error))

    # -- facts of the decider's own ------------------------------------------------------------------------------------

    def publish(self, data: Data, source: str = "decider") -> None:
        """Append one fact."""
        self._counter += 1
        event = Event.of(data, at_ms=self.wall_ms(), source=source)
        self._writing.submit(Fact(f"decider/{self._writer.replace('/', '.')}.{self._epoch}/{self._counter}", event))

    def submit(self, fact: Fact) -> None:
        """Append one fact that somebody waits for."""
        self._writing.submit(fact)

    # -- what the log says ---------------------------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        self._roster.fold(record)
        self._history = self._history or record.hash
        match record.event.data:
            case PlanCommitted(plan=plan) if plan.action in MOVING:
                policy = self._config.worker_policy.checkpoint
                self._dispatch = Dispatch(plan, _head(record), policy.replicas, policy.standby_slots, self._history)
            case _:
                pass

    def _committed(self, done: Committed) -> None:
        for record in done.records:
            self._take(record)
            self._react(record)
        acks: dict[Session, int] = {}
        for fact in done.facts:
            if isinstance(fact.origin, asyncio.Future) and not fact.origin.done():
                fact.origin.set_result(None)
            elif isinstance(fact.origin, Session):
                acks[fact.origin] = int(fact.event_id.rsplit("/", 1)[1])
        for session, upto in acks.items():
            session.send("ack", upto=upto)

    def _react(self, record: Record) -> None:
        self._observation.committed(record)
        match record.event.data:
            case PlanCommitted(plan=plan):
                log.info("plan", action=plan.action, reason=plan.reason, generation=plan.to_generation, seq=record.seq)
                self._push_plan(record, plan)
            case RunClosed(outcome=outcome, reason=reason):
                log.info("run_closed", outcome=outcome, reason=reason)
                for session in self._sessions.values():
                    session.send("closed", outcome=outcome, reason=reason, head=_head(record))
            case NodeJoined(node=node):
                self._connections.joined(node)
                self._tell_nodes()
            case NodeLost(node=node, incarnation=incarnation):
                gone = self._sessions.get(node)
                if gone is not None and gone.incarnation == incarnation:
                    gone.send("lost")
                    self.forget(gone)
                self._tell_nodes()
            case NodeCordoned() | NodeUncordoned() | ConfigDrifted():
                self._tell_nodes()
            case WorkerExited(generation=generation, error=error) if generation == self._roster.generation:
                log.info("worker_exited", node=record.event.source, error=error and error.kind)
                self._probe(generation)
            case _:
                pass

    def _log_outage(self, why: str | None) -> None:
        self._outage = why
        self._leases.start_anew(self._loop.time())

    # -- plans, barrier, restore ---------------------------------------------------------------------------------------

    def _tell_nodes(self) -> None:
        """Who can hold replicas has changed: a node whose targets are others now is told."""
        if self._dispatch is None:
            return
        self._observation.nodes_changed()
        for node in self._roster.active():
            session = self._sessions.get(node)
            if session is None:
                continue
            targets = self._dispatch.replicate_to(session, self._sessions, self._roster.out)
            if targets != session.replicate_to:
                session.replicate_to = targets
                session.send("replicate_to", replicate_to=list(targets))

    def _push_plan(self, record: Record, plan: Plan) -> None:
        if plan.action in MOVING:
            self._begin(plan)
            for session in self._sessions.values():
                self._send_orders(session)

    def _begin(self, plan: Plan) -> None:
        """A generation begins: nobody has arrived yet."""
        self._barrier = Barrier(plan.to_generation)
        self._observation.begin(plan)

    def _send_orders(self, session: Session) -> None:
        assert self._dispatch is not None
        orders = self._dispatch.orders(session, self._sessions, self._roster.out)
        session.replicate_to = orders.replicate_to
        session.send("plan", **orders.to_wire())

    def _arrived(self, session: Session, message: dict[str, Any]) -> None:
        generation, active = message["generation"], self._roster.active()
        if generation != self._barrier.generation or active.get(session.node) != session.incarnation:
            return
        if self._barrier.arrive(session.node, message.get("store"), active.keys()):
            assert self._roster.plan is not None
            first = min(self._roster.plan.assignments, key=lambda a: a.slot).node
            self._tell_active("go", generation=generation, store=self._barrier.arrived[first])

    def _restorable(self, session: Session, generation: int) -> None:
        if generation == self._barrier.generation and self._barrier.has_shard(
            session.node, self._roster.active().keys()
        ):
            self._tell_active("load", generation=generation)

    def _vault_listens(self, session: Session, port: int | None) -> None:
        """A vault that was restarted listens elsewhere: whoever sends it replicas is told."""
        if port != session.vault_port:
            session.vault_port = port
            self._tell_nodes()

    def _progress(self, session: Session, generation: int, step: int) -> None:
        live = self._roster.live(session.node, session.incarnation)
        if generation == self._roster.generation and live:
            self._observation.progress(step)

    def _tell_active(self, kind: str, **values: Any) -> None:
        self._sessions.tell(self._roster.active(), kind, **values)

    # -- leases and suspicion ------------------------------------------------------------------------------------------

    def _probe(self, generation: int) -> None:
        """Peers failed: ask every active node at once instead of waiting out a lease."""
        if self._probed_generation == generation:
            return
        self._probed_generation = generation
        self._tell_active("probe", generation=generation)

    async def _watch(self) -> None:
        last, ticks = self._loop.time(), 0
        while True:
            await asyncio.sleep(TICK_S)
            now = self._loop.time()
            if now - last > PAUSE_S:
                log.warning("decider_paused", seconds=round(now - last, 2))
                self._leases.start_anew(now)
            last = now
            if self._outage is not None:
                continue
            ticks += 1
            if self._roster.closed is None:
                if ticks % OBSERVE_TICKS == 0:
                    self._observation.look()
                for node, incarnation in list(self._leases.expired(now)):
                    self.lose(node, incarnation, "lease_expired")
            for session in self._leases.silent_outsiders(now):
                self.forget(session)

    def _alone(self) -> bool:
        """Whether another agent may decide by now: the lease could not be renewed, and half of the run is silent."""
        now = self._loop.time()
        in_doubt = now - self._committer.renewed_at > self._lease_ms * 2 / 3000
        return in_doubt and not self._config.embedded and self._leases.alone(now)

    def lose(self, node: str, incarnation: str, reason: str) -> None:
        """This life of a node is over: say so, once, and hear it no more."""
        ends = self._roster.closed is None and self._roster.live(node, incarnation)
        if ends and self._leases.give_up(node, incarnation):
            log.warning("node_lost", node=node, reason=reason)
            self.publish(NodeLost(node=node, incarnation=incarnation, reason=reason))
        session = self._sessions.get(node)
        if session is not None and session.incarnation == incarnation:
            self.forget(session)

    def forget(self, session: Session) -> None:
        """Close a connection that is of no use any more."""
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            self._observation.forget(session.node)
        session.channel.close()

    # -- what agents say -----------------------------------------------------------------------------------------------

    @property
    def reopened(self) -> bool:
        """No plan was dispatched since the run was opened or reopened."""
        return self._dispatch is None

    def welcome(self, session: Session) -> None:
        """This agent is in the run: tell it so, and what it is to do."""
        session.send("welcome", run=self._config.run_id, outage=self._outage)
        if self._dispatch is not None:
            self._send_orders(session)

    def heard(self, session: Session, message: dict[str, Any]) -> None:
        """One message of an agent in the run."""
        match message["kind"]:
            case "heartbeat":
                session.send("heartbeat", sent_s=message["sent_s"], outage=self._outage, alone=self._alone())
            case "facts":
                for event_id, envelope in message["facts"]:
                    self._take_fact(session, event_id, envelope)
            case "leaving":
                self._tell_active("save")
            case "vault":
                self._vault_listens(session, message["port"])
            case "arrived":
                self._arrived(session, message)
            case "restorable":
                self._restorable(session, message["generation"])
            case "progress":
                self._progress(session, message["generation"], message["step"])
            case "alive":
                session.alive.set()
                if message.get("generation") == self._roster.generation and self._roster.closed is None:
                    self.publish(NodeConfirmed(node=session.node, incarnation=session.incarnation))
            case "goodbye":
                self._goodbye(session, message["reason"])
            case _:
                self._observation.said(session.node, message)

    def _goodbye(self, session: Session, reason: str) -> None:
        session.said_goodbye = True
        if self._roster.closed is None and self._roster.live(session.node, session.incarnation):
            self._leases.give_up(session.node, session.incarnation)
            left = NodeLeft(node=session.node, incarnation=session.incarnation, reason=reason)
            self.publish(left, source=session.node)
        self.forget(session)

    def _take_fact(self, session: Session, event_id: str, envelope: dict[str, Any]) -> None:
        try:
            event = Event.parse(envelope, strict=True)
            if event.source != session.node or not event_id.startswith(f"{session.node}/{session.incarnation}/"):
                raise EventInvalid(event.type, "source", "not the sender")
        except EventInvalid as error:
            log.error("fact_refused", event_id=event_id, why=str(error))
            session.send("ack", upto=int(event_id.rsplit("/", 1)[1]))
            return
        self.submit(Fact(event_id, event, origin=session))


def _head(record: Record) -> dict[str, Any]:
    return {"seq": record.seq, "hash": record.hash}
