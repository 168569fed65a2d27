"""The decider: the one agent that admits nodes, keeps leases, writes the log and pushes decisions.

It runs on the asyncio loop of the agent that hosts the run. Everything it remembers besides the log (connections,
leases, the arrival barrier, pins) is transport: lose it and the agents say it again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import structlog

from lmr.engine.errors import EventInvalid
from lmr.engine.events import (
    CheckpointCaptured,
    CheckpointPersisted,
    CheckpointReplicated,
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
    ReplayChecked,
    RunClosed,
    RunOpened,
    RunReopened,
    WorkerExited,
    WorkersFinished,
)
from lmr.engine.plan import Plan
from lmr.engine.record import Record
from lmr.integrations.scout.drift import DriftDetector
from lmr.integrations.scout.rerun.golden import Golden
from lmr.integrations.scout.run_scout import Ask, RunScout
from lmr.integrations.torchrun import admission, announcement
from lmr.integrations.torchrun.admission import Refusal
from lmr.integrations.torchrun.barrier import Barrier
from lmr.integrations.torchrun.committer import Committed, Committer, Fact
from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.errors import AdmissionRefused
from lmr.integrations.torchrun.leases import Leases
from lmr.integrations.torchrun.orders import Dispatch
from lmr.integrations.torchrun.retention import Retention
from lmr.integrations.torchrun.roster import Roster
from lmr.integrations.torchrun.sessions import Session, Sessions
from lmr.integrations.torchrun.surroundings import REAL, Surroundings
from lmr.integrations.wire import AsyncChannel, WireError
from lmr.store import EventLog, StoreError

log = structlog.get_logger("lmr.decider")

TICK_S = 0.05
OBSERVE_TICKS = 5
PAUSE_S = 0.5
"""A gap between two ticks that means this process was stopped; leases then start anew."""
LINK_GRACE_MS = 300
"""How long a closed link may reconnect before its node is lost."""
PROBE_ANSWER_S = 1.0
HELLO_S = 10.0
MOVING = ("start", "restart", "replace")
"""Actions that order a new generation."""
OPERATOR_FACTS = ("operator_requested", "node_cordoned", "node_uncordoned", "policy_changed")
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
        self._secret = secret
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
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._barrier = Barrier(-1)
        self._retention: Retention | None = None
        self._probed_generation = -2
        policy = config.worker_policy
        golden = Golden(config.state_folder / "golden.json")
        self._scout = RunScout(policy.replay, golden) if policy.enable_detection else None
        self._drift = DriftDetector(policy.replay.drift)
        self._outage: str | None = None
        self._stopping = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
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
        self._wall_ms = surroundings.clock.wall_ms
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
            self._publish(self._opening())
        elif self._roster.closed is None and reopen:
            log.info("run_reopened", run=self._config.run_id)
            self._dispatch = None
            self._publish(RunReopened(run_id=self._config.run_id))
        elif self._dispatch is not None:
            self._begin(self._dispatch.plan)
        self._leases.start_anew(self._loop.time())
        self._server = await asyncio.start_server(self._accept, sock=listener, backlog=4096)
        self._spawn(self._watch())

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
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions.values()):
            session.channel.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        await self._writing.stop()
        await asyncio.to_thread(self._give_back)

    def _give_back(self) -> None:
        try:
            self._event_log.release_lease(self._config.run_id, self._epoch)
        except StoreError as error:
            log.warning("lease_not_released", why=str(error))

    def _spawn(self, work: Any) -> None:
        self._keep(self._loop.create_task(work))

    def _keep(self, task: asyncio.Task[Any]) -> None:
        """Cancel this one when the decider stops."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- facts of the decider's own ------------------------------------------------------------------------------------

    def _publish(self, data: Data, source: str = "decider") -> None:
        self._counter += 1
        event = Event.of(data, at_ms=self._wall_ms(), source=source)
        self._writing.submit(Fact(f"decider/{self._writer.replace('/', '.')}.{self._epoch}/{self._counter}", event))

    def _publish_undecided(self, data: Data) -> None:
        """Peers differ and no majority names one; a rank's own continuity may, within moments, and then that is all."""
        scout, generation = self._scout, self._roster.generation
        if scout is None:
            self._publish(data)
            return

        def publish() -> None:
            if generation == self._roster.generation and not scout.named_damage:
                self._publish(data)

        self._loop.call_later(self._config.worker_policy.replay.own_word_ms / 1000, publish)

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
        match record.event.data:
            case PlanCommitted(plan=plan):
                log.info("plan", action=plan.action, reason=plan.reason, generation=plan.to_generation, seq=record.seq)
                self._push_plan(record, plan)
            case RunClosed(outcome=outcome, reason=reason):
                log.info("run_closed", outcome=outcome, reason=reason)
                for session in self._sessions.values():
                    session.send("closed", outcome=outcome, reason=reason, head=_head(record))
            case NodeJoined(node=node):
                for future in self._waiting.pop(node, []):
                    if not future.done():
                        future.set_result(None)
                self._tell_nodes()
            case NodeLost(node=node, incarnation=incarnation):
                gone = self._sessions.get(node)
                if gone is not None and gone.incarnation == incarnation:
                    gone.send("lost")
                    self._forget(gone)
                self._tell_nodes()
            case NodeCordoned() | NodeUncordoned() | ConfigDrifted():
                self._tell_nodes()
            case WorkersFinished(generation=generation, node=node):
                self._rank_ended(generation, self._ranks_of(node), clean=True)
            case WorkerExited(generation=generation, error=error, rank=rank, ranks=ranks) if (
                generation == self._roster.generation
            ):
                self._rank_ended(generation, ranks if ranks is not None else (rank or 0,), clean=False)
                log.info("worker_exited", node=record.event.source, error=error and error.kind)
                self._probe(generation)
            case CheckpointCaptured() | CheckpointReplicated() | CheckpointPersisted() as copy:
                if copy.generation == self._roster.generation:
                    self._kept(copy)
            case _:
                pass

    def _kept(self, copy: CheckpointCaptured | CheckpointReplicated | CheckpointPersisted) -> None:
        """A step of the running generation is in one more place."""
        if self._retention is None:
            return
        match copy:
            case CheckpointCaptured(step=step, slot=slot):
                self._retention.captured(step, slot)
                if self._scout is not None:
                    self._scout.retained(step)
            case CheckpointReplicated(step=step, slot=slot, holder=holder):
                self._retention.replicated(step, slot, holder)
            case CheckpointPersisted(step=step):
                self._retention.persisted(step)

    def _ranks_of(self, node: str) -> tuple[int, ...]:
        plan = self._roster.plan
        for a in plan.assignments if plan is not None else ():
            if a.node == node:
                return tuple(range(a.first_rank, a.first_rank + a.local_world_size))
        return ()

    def _rank_ended(self, generation: int, ranks: tuple[int, ...], *, clean: bool) -> None:
        if self._scout is not None:
            for rank in ranks:
                self._scout.ended(generation, rank, clean=clean)

    def _observe(self) -> None:
        """Let the detectors look at what all ranks said; publish what they find."""
        if self._scout is None or self._roster.closed is not None:
            return
        if self._retention is not None:
            self._retention.look(self._monotonic_ms())
        for said in self._scout.tick(self._monotonic_ms()):
            if isinstance(said, Ask):
                self._sessions.tell(
                    {self._node_of(rank) for rank in said.ranks},
                    "capture",
                    request=said.request,
                    ranks=list(said.ranks),
                    generation=self._roster.generation,
                )
            else:
                if not isinstance(said, ReplayChecked) or said.verdict != "clean":
                    log.warning("scout", fact=said.type)
                self._publish(cast("Data", said))

    def _node_of(self, rank: int) -> str:
        plan = self._roster.plan
        slot = rank // self._local_world_size
        return next((a.node for a in plan.assignments if a.slot == slot), "") if plan is not None else ""

    def _log_outage(self, why: str | None) -> None:
        self._outage = why
        self._leases.start_anew(self._loop.time())

    # -- plans, barrier, restore ---------------------------------------------------------------------------------------

    def _tell_nodes(self) -> None:
        """Who can hold replicas has changed: a node whose targets are others now is told."""
        if self._dispatch is None:
            return
        if self._retention is not None:
            self._retention.can_replicate(self._replicas())
        for node in self._roster.active():
            session = self._sessions.get(node)
            if session is None:
                continue
            targets = self._dispatch.replicate_to(session, self._sessions, self._roster.out)
            if targets != session.replicate_to:
                session.replicate_to = targets
                session.send("replicate_to", replicate_to=list(targets))

    def _replicas(self) -> int:
        """Copies of a slot there can be now."""
        return min(self._config.worker_policy.checkpoint.replicas, len(self._sessions) - 1)

    def _push_plan(self, record: Record, plan: Plan) -> None:
        if plan.action in MOVING:
            self._begin(plan)
            for session in self._sessions.values():
                self._send_orders(session)

    def _begin(self, plan: Plan) -> None:
        """A generation begins: nobody has arrived, nothing is pinned or compared yet."""
        self._barrier = Barrier(plan.to_generation)
        world_size = len(plan.assignments) * self._local_world_size
        if self._scout is not None:
            nodes = {a.first_rank + local: a.node for a in plan.assignments for local in range(a.local_world_size)}
            self._scout.begin(plan.to_generation, world_size, nodes)
        self._retention = Retention(
            plan.to_generation,
            len(plan.assignments),
            plan.checkpoint.step if plan.checkpoint is not None else 0,
            self._config.worker_policy,
            world_size=world_size,
            replicas=self._replicas(),
            tell_active=self._tell_active,
            tell_all=self._tell_all,
            publish=self._publish,
            undecided=self._publish_undecided,
            vouches=None if self._scout is None else self._scout.vouches,
        )

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
        if self._retention is not None and generation == self._roster.generation and live:
            self._retention.progress(step, self._monotonic_ms())

    def _monotonic_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _tell_all(self, kind: str, **values: Any) -> None:
        self._sessions.tell(list(self._sessions), kind, **values)

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
            if ticks % OBSERVE_TICKS == 0:
                self._observe()
            if self._roster.closed is None:
                for node, incarnation in list(self._leases.expired(now)):
                    self._lose(node, incarnation, "lease_expired")
            for session in self._leases.silent_outsiders(now):
                self._forget(session)

    def _alone(self) -> bool:
        """Whether another agent may decide by now: the lease could not be renewed, and half of the run is silent."""
        now = self._loop.time()
        in_doubt = now - self._committer.renewed_at > self._lease_ms * 2 / 3000
        return in_doubt and not self._config.embedded and self._leases.alone(now)

    def _lose(self, node: str, incarnation: str, reason: str) -> None:
        ends = self._roster.closed is None and self._roster.live(node, incarnation)
        if ends and self._leases.give_up(node, incarnation):
            log.warning("node_lost", node=node, reason=reason)
            self._publish(NodeLost(node=node, incarnation=incarnation, reason=reason))
        session = self._sessions.get(node)
        if session is not None and session.incarnation == incarnation:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            self._drift.forget(session.node)
        session.channel.close()

    # -- connections ---------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel: AsyncChannel | None = None
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
                await self._serve(session)
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
                self._spawn(self._link_closed(session))

    async def _link_closed(self, session: Session) -> None:
        """A link that closed without goodbye may come back; else its node is gone."""
        if not session.said_goodbye:
            await asyncio.sleep(LINK_GRACE_MS / 1000)
        if self._sessions.get(session.node) is not session or not await self._leases.gone(session):
            return
        if self._sessions.get(session.node) is session:
            self._lose(session.node, session.incarnation, "link_closed")

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
            joined: asyncio.Future[None] = self._loop.create_future()
            self._waiting.setdefault(node, []).append(joined)
            reopened = self._dispatch is None
            held = announcement.read(node, hello.get("held", []), reopened=reopened)
            if reopened and self._roster.generation >= 0:  # the plan may follow the join
                self._announce(node, held)
            self._publish(
                NodeJoined(
                    node=node,
                    incarnation=incarnation,
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
        session.heard = self._loop.time()
        session.send("welcome", run=self._config.run_id, outage=self._outage)
        if self._dispatch is not None:
            self._send_orders(session)
        return session

    def _announce(self, node: str, held: list[Data]) -> None:
        for fact in held:
            self._publish(fact, source=node)

    async def _record_request(self, hello: dict[str, Any], channel: AsyncChannel) -> None:
        """An operator's fact: append it, answer when it is committed."""
        answer: dict[str, Any] = {"kind": "recorded"}
        try:
            if hello["run"] != self._config.run_id or hello["type"] not in OPERATOR_FACTS:
                raise EventInvalid(hello["type"], "", "not an operator's fact for this run")
            envelope = {
                "type": hello["type"],
                "at_ms": self._wall_ms(),
                "source": f"operator:{hello['by']}",
                "data": hello["data"],
            }
            event = Event.parse(envelope, strict=True)
        except EventInvalid as error:
            answer = {"kind": "refused", "reason": str(error)}
        else:
            written: asyncio.Future[None] = self._loop.create_future()
            self._writing.submit(Fact(f"operator:{hello['request']}", event, origin=written))
            await written
        channel.send(answer)
        await channel.writer.drain()

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
            self._forget(first)
            return None
        return admission.twin(node)

    async def _serve(self, session: Session) -> None:
        while not session.said_goodbye:
            message = await session.channel.recv()
            session.heard = self._loop.time()
            self._heard(session, message)

    def _heard(self, session: Session, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "heartbeat":
                session.send("heartbeat", outage=self._outage, alone=self._alone())
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
                    self._publish(NodeConfirmed(node=session.node, incarnation=session.incarnation))
            case "goodbye":
                self._goodbye(session, message["reason"])
            case _:
                self._observed(session, message)

    def _observed(self, session: Session, message: dict[str, Any]) -> None:
        """What the node's detectors saw; silently nothing when detection is off."""
        match message["kind"]:
            case "digests":
                if self._retention is not None and message["generation"] == self._roster.generation:
                    self._retention.digests(message["step"], message["ranks"], saved=message["saved"])
            case "pulse" | "captured" | "rerun":
                if self._scout is not None:
                    self._scout.told(message, self._monotonic_ms())
                if self._retention is not None:
                    self._retention.look(self._monotonic_ms())
            case "configuration":
                for drift in self._drift.tell(session.node, message["keys"]):
                    log.warning("config_drifted", node=drift.node, keys=drift.keys)
                    self._publish(ConfigDrifted(node=drift.node, keys=drift.keys))
            case unknown:
                log.warning("unknown_message", kind=unknown, node=session.node)

    def _goodbye(self, session: Session, reason: str) -> None:
        session.said_goodbye = True
        if self._roster.closed is None and self._roster.live(session.node, session.incarnation):
            self._leases.give_up(session.node, session.incarnation)
            left = NodeLeft(node=session.node, incarnation=session.incarnation, reason=reason)
            self._publish(left, source=session.node)
        self._forget(session)

    def _take_fact(self, session: Session, event_id: str, envelope: dict[str, Any]) -> None:
        try:
            event = Event.parse(envelope, strict=True)
            if event.source != session.node or not event_id.startswith(f"{session.node}/{session.incarnation}/"):
                raise EventInvalid(event.type, "source", "not the sender")
        except EventInvalid as error:
            log.error("fact_refused", event_id=event_id, why=str(error))
            session.send("ack", upto=int(event_id.rsplit("/", 1)[1]))
            return
        self._writing.submit(Fact(event_id, event, origin=session))


def _head(record: Record) -> dict[str, Any]:
    return {"seq": record.seq, "hash": record.hash}
