"""The node runtime: everything an agent does besides torchrun's own loop, on one asyncio thread.

The torchrun agent's thread asks it two questions through `current()`: which committed plan is mine, and is it over. All
sockets, the vault and (on the host) the decider live here, so that the agent's loop never waits for any of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, cast

import structlog

from lmr.engine.events import (
    CheckpointCaptured,
    CheckpointDropped,
    CheckpointReplicated,
    Data,
    GenerationStarted,
    RestoreFailed,
    StateRestored,
    TrainingResumed,
    WorkerExited,
    WorkersFinished,
)
from lmr.engine.plan import Assignment
from lmr.integrations.scout.health.watch import HealthWatch, sources
from lmr.integrations.scout.node_scout import NodeScout
from lmr.integrations.torchrun import local_socket, warm
from lmr.integrations.torchrun.config import BackendConfig, database_host
from lmr.integrations.torchrun.decider import LEASE_MS, Decider
from lmr.integrations.torchrun.election import Election, listen
from lmr.integrations.torchrun.errors import AdmissionRefused
from lmr.integrations.torchrun.identity import Identity, address_towards, identify
from lmr.integrations.torchrun.link import Link, Locate
from lmr.integrations.torchrun.meeting import Host, Meeting, meet
from lmr.integrations.torchrun.orders import Orders
from lmr.integrations.torchrun.peers import nobody_decides, serve_peers
from lmr.integrations.torchrun.vault_link import VaultLink, vault_environ
from lmr.integrations.torchrun.workers import Exit, Workers, kill_group
from lmr.store import EventLog, Lease, open_log

log = structlog.get_logger("lmr.node")

WATCH_S = 0.05
HOST_GONE_S = 5.0
"""Connections to the decider refused for so long: its process is dead, and with it the embedded log."""
HOST_SILENT_S = 120.0
"""Silence that ends an agent even when the host's address still accepts: it is frozen for good."""
FLUSH_S = 0.2
"""How long an exit waits for the vault to publish what it holds; the engine settles longer than this."""
ECHO_GATHER_S = 0.03
LEAVE_S = 2.0
OTHERS_LEAVE_S = 20.0


@dataclass(frozen=True)
class End:
    """It is over for this agent."""

    reason: str
    exit_code: int
    outcome: str | None = None
    """How the run was closed; None when only this agent ends."""

    @property
    def run_closed(self) -> bool:
        """Whether the run is over for everybody."""
        return self.outcome is not None


@dataclass(frozen=True)
class Current:
    """What the torchrun thread needs to know, as one consistent value."""

    orders: Orders | None = None
    mine: Assignment | None = None
    """This node's slot; None when it has none, or when this life of it was given up."""
    go: dict[str, Any] | None = None
    end: End | None = None
    displaced: bool = False
    """This node's workers must stop: it was replaced, fenced or declared lost."""

    @property
    def generation(self) -> int:
        """The generation the latest plan orders; -1 before the first."""
        return self.orders.generation if self.orders is not None else -1


@dataclass
class _Generation:
    """What this node has said about its present generation."""

    number: int = -1
    restored: dict[int, tuple[int, str]] = field(default_factory=dict)
    resumed: bool = False
    finished: bool = False


class NodeRuntime:
    """One agent's life in a run.

    Args:
        config: checked settings.
    """

    def __init__(self, config: BackendConfig) -> None:
        self._config = config
        self._identity = identify(config.failure_domain)
        self._local_world_size = 0
        self._current = Current()
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lmr-node", daemon=True)
        self._meeting: Meeting | None = None
        self._decider: Decider | None = None
        self._link: Link | None = None
        self._link_task: asyncio.Task[None] | None = None
        self._locate: Locate | None = None
        self._election: Election | None = None
        self._event_log: EventLog | None = None
        self._secret = b""
        self._address = ""
        self._peer_port = 0
        self._vault: VaultLink | None = None
        self._vault_copies: dict[tuple[int, int, int], tuple[int, str]] = {}
        self._workers: Workers | None = None
        self._said = _Generation()
        self._restorable: int | None = None
        self._arrival: tuple[int, dict[str, Any] | None] | None = None
        self._flushed: asyncio.Event = asyncio.Event()
        self._exits: list[Exit] = []
        self._reporting = False
        self._welcome: asyncio.Future[None] | None = None
        self._fencing = False
        self._leaving = False
        self._node_name: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._scout: NodeScout | None = None
        self._warm: subprocess.Popen[bytes] | None = None
        self._warm_name = ""

    # -- what the torchrun thread calls --------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        """This agent; the incarnation changes when the node had to rejoin."""
        return self._identity

    @property
    def address(self) -> str:
        """What peers reach this node by."""
        return self._address

    def current(self) -> Current:
        """The latest word. Never blocks."""
        return self._current

    def wait_for_change(self, seen: Current, timeout_s: float) -> Current:
        """Sleep until something differs from `seen`, at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._current is not seen, timeout_s)
            return self._current

    def join(self, local_world_size: int, cancelled: Any) -> None:
        """Meet, host the run if nobody does, and be admitted.

        Raises:
            MeetingFailed: the endpoint could not be served or reached.
            AdmissionRefused: the run does not take this agent.
            StoreError: the event log cannot be opened.
        """
        self._local_world_size = local_world_size
        self._thread.start()
        if self._config.embedded or self._config.secret is None:
            self._meeting = meet(self._config, cancelled)
        self._do(self._join())

    def _do(self, work: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def arrive(self, generation: int, store: dict[str, Any] | None) -> None:
        """This node is ready to start the generation's workers; slot 0 brings the workers' store."""
        self._loop.call_soon_threadsafe(self._arrive, generation, store)

    def starting(self, ranks: tuple[int, ...], generation: int) -> None:
        """The agent is about to start these workers."""

        async def expect() -> None:
            assert self._workers is not None
            self._workers.expect(generation, ranks)
            if self._scout is not None:
                self._scout.expect(generation)
            self._said = _Generation(generation)
            self._exits.clear()

        self._do(expect(), 10)

    def kill_workers(self, more_pids: list[int]) -> None:
        """SIGKILL the current workers; `more_pids` are those the agent knows."""
        if self._workers is not None:
            self._workers.kill()
        for pid in more_pids:
            kill_group(pid)

    def told_to_leave(self) -> None:
        """The agent got a signal that ends it. Called from a signal handler: only schedules."""
        self._loop.call_soon_threadsafe(self._told_to_leave)

    def _told_to_leave(self) -> None:
        self._leaving = True
        if self._workers is not None:
            self._workers.leave()

    def stopped(self) -> None:
        """The agent is between generations; a displaced node has stopped its workers."""
        self._loop.call_soon_threadsafe(self._set, {"displaced": False})

    @property
    def supervised(self) -> bool:
        """Whether every current worker reported itself."""
        return self._workers is not None and self._workers.supervised

    def report_unsupervised_start(self, generation: int) -> None:
        """The workers run, but say nothing of themselves."""
        self._loop.call_soon_threadsafe(self._unsupervised, generation, False)

    def report_unsupervised_finish(self, generation: int) -> None:
        """Workers that say nothing of themselves have all succeeded, as torchrun saw."""
        self._loop.call_soon_threadsafe(self._unsupervised, generation, True)

    def _unsupervised(self, generation: int, finished: bool) -> None:
        if self._said.number != generation:
            return
        if not finished:
            self._started()
        elif not self._said.finished:
            self._said.finished = True
            self._fact(WorkersFinished(generation=generation, node=self._identity.node))

    def report_unsupervised_failure(self, generation: int) -> None:
        """The agent saw its workers fail and no supervisor said so."""

        async def report() -> None:
            if self._workers is not None and self._said.number == generation:
                self._workers.all_lost()

        self._do(report(), 10)

    def environment(self) -> dict[str, str]:
        """What workers find in their environment."""
        assert self._workers is not None
        step = self._current.orders.step if self._current.orders is not None else 0
        return {
            "LM_RESILIENCY_GENERATION": str(self._current.generation),
            "LM_RESILIENCY_RESUME_STEP": str(step),
            "LMR_AGENT_SOCKET": self._workers.socket_name,
            warm.SOCKET: self._warm_name,
            "LMR_VAULT_SOCKET": self._vault.socket_name if self._vault is not None else "",
            "LMR_WORKER_POLICY": self._config.worker_policy.model_dump_json(),
        }

    def close(self, reason: str) -> None:
        """Leave the run: goodbye, end the vault, and on the host wait for the others first. Safe to call twice."""
        if self._closed or not self._thread.is_alive():
            return
        self._closed = True
        try:
            self._do(self._leave(reason), OTHERS_LEAVE_S + 10)
        except Exception as error:  # noqa: BLE001 - the process is ending; say it and end
            log.warning("leave_incomplete", why=repr(error))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2)

    # -- joining -------------------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        meeting = self._meeting
        self._address = self._config.local_addr or address_towards(*self._towards())
        if self._config.embedded:
            assert meeting is not None
            if meeting.serves:
                await self._host_run(meeting)
            host = await asyncio.to_thread(meeting.find, self._join_until())
            self._secret = self._config.secret or host.secret
            self._locate = _always(host.address, host.port)
        else:
            await self._stand_for_election(meeting)
        if not self._secret:
            raise AdmissionRefused("the run has a secret: set LM_RESILIENCY_SECRET_FILE on every node")
        _, self._peer_port = await serve_peers(self._secret, self._silent_s)
        self._keep_warm()
        name = f"lmr-agent-{self._scope()}-{os.getpid()}"
        self._workers = Workers(name, self._started, self._exited, self._trainer_said)
        if self._config.worker_policy.enable_checkpoint:
            await self._start_vault()
        await self._connect()
        self._observe()
        self._spawn(self._watch())

    def _observe(self) -> None:
        """Start this node's detectors."""
        policy = self._config.worker_policy
        if not policy.enable_detection:
            return
        folder = self._config.state_folder / "artifacts" / self._identity.node
        self._scout = NodeScout(policy.replay, self._tell_run, folder)
        self._spawn(self._scout.run())
        health = policy.replay.health
        watch = HealthWatch(self._identity.node, health, lambda data: self._fact(cast("Data", data)), sources(health))
        self._spawn(watch.run())

    def _tell_run(self, kind: str, **values: Any) -> None:
        if self._link is not None:
            self._link.send(kind, **values)

    def _keep_warm(self) -> None:
        """A process with torch loaded, from which trainers start; without it they start cold."""
        if os.environ.get(warm.SWITCH) == "0" or (self._warm is not None and self._warm.poll() is None):
            return
        self._warm_name = f"lmr-warm-{self._scope()}-{os.getpid()}-{self._current.generation}"
        try:
            self._warm = subprocess.Popen(
                [sys.executable, "-m", "lmr.integrations.torchrun.warm", self._warm_name, str(os.getpid())],
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            log.warning("no_warm_start", why=str(error))

    def _join_until(self) -> float:
        return time.monotonic() + self._config.join_timeout_ms / 1000

    def _towards(self) -> tuple[str, int]:
        """A peer whose way tells this node's own address."""
        if self._meeting is not None:
            return self._meeting.host_name, self._meeting.host_port or 1
        return database_host(self._config.log_location)

    def _silent_s(self) -> float:
        return time.monotonic() - self._link.heard if self._link is not None else 0.0

    def _scope(self) -> str:
        return hashlib.sha256(f"{self._config.run_id}\0{self._identity.node}".encode()).hexdigest()[:16]

    async def _host_run(self, meeting: Meeting) -> None:
        """Embedded: this agent serves the endpoint, so it decides, with the log on its own disk."""
        secret = self._config.secret or _fresh_secret()
        self._config.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._event_log = await asyncio.to_thread(open_log, self._config.log_location)
        listener = listen()
        port = int(listener.getsockname()[1])
        lease = await asyncio.to_thread(
            _acquire_lease, self._event_log, self._config.run_id, self._writer(), f"{self._address}:{port}"
        )
        self._secret = secret
        await self._decide(lease.epoch, listener, reopen=True)
        self._leave_secret_to_operator(secret)
        meeting.announce(Host(self._address, port, b"" if self._config.secret is not None else secret))

    async def _stand_for_election(self, meeting: Meeting | None) -> None:
        """A database server holds the log: whoever holds the lease decides, and another takes over when it lapses."""
        self._event_log = await asyncio.to_thread(open_log, self._config.log_location)
        if self._config.secret is not None:
            self._secret = self._config.secret
        else:
            assert meeting is not None
            if meeting.serves:
                meeting.announce(Host(self._address, 0, _fresh_secret()))
            self._secret = (await asyncio.to_thread(meeting.find, self._join_until())).secret
        self._election = Election(
            self._event_log, self._config.run_id, self._writer(), self._address, self._lease_ms(), self._won
        )
        self._locate = self._election.locate

    def _writer(self) -> str:
        return f"{self._identity.node}/{self._identity.incarnation}"

    def _lease_ms(self) -> int:
        """Embedded, nobody competes; else a decider's loss is noticed about as fast as a node's."""
        return LEASE_MS if self._config.embedded else self._config.heartbeat_timeout_ms * 3 // 2

    async def _won(self, epoch: int, listener: socket.socket, reopen: bool) -> None:
        await self._decide(epoch, listener, reopen=reopen)

    async def _decide(self, epoch: int, listener: socket.socket, *, reopen: bool) -> None:
        assert self._event_log is not None
        decider = Decider(
            self._config,
            self._local_world_size,
            self._event_log,
            epoch,
            self._writer(),
            self._secret,
            lease_ms=self._lease_ms(),
            on_fenced=self._fenced_off,
        )
        await decider.start(listener, reopen=reopen)
        self._decider = decider

    def _fenced_off(self, reason: str) -> None:
        """Another decider took over: this agent goes on as a member; embedded there can be none, so it ends."""
        if self._election is None:
            self._end(f"the decider cannot go on: {reason}", 1)
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

    def _only_life_here(self) -> bool:
        """Whether no other agent of this machine, frozen ones included, stands for this node; then nobody else can."""
        try:
            self._node_name = local_socket.listen(f"lmr-node-{self._scope()}")
        except OSError:
            return False
        return True

    async def _start_vault(self) -> None:
        policy = self._config.worker_policy.model_dump(mode="json")
        environ = vault_environ(self._config.run_id, self._identity.node, self._secret, policy)
        name = f"lmr-vault-{self._scope()}"
        if not self._only_life_here():
            name += f"-{os.getpid()}"  # the other life's vault is not ours to adopt, still less to end
        vault = VaultLink(name, environ, self._vault_said, self._vault_lost)
        self._vault = vault
        if not await vault.start():
            log.error("unprotected", why="no vault: training state is not kept on this node")

    async def _connect(self) -> None:
        assert self._locate is not None
        self._welcome = self._loop.create_future()
        timeout_s = self._config.heartbeat_timeout_ms / 1000
        silence_s = None if self._election is None else timeout_s
        self._link = Link(self._identity, self._secret, self._hello(), self._decider_said, timeout_s / 6, silence_s)
        self._link_task = self._loop.create_task(self._link.run(self._locate))
        try:
            await asyncio.wait_for(self._welcome, self._config.join_timeout_ms / 1000)
        except asyncio.TimeoutError:
            raise AdmissionRefused(
                "the run did not answer within the join timeout: is its secret (LM_RESILIENCY_SECRET_FILE) this node's?"
            ) from None

    def _hello(self) -> dict[str, Any]:
        return {
            "run": self._config.run_id,
            "node": self._identity.node,
            "incarnation": self._identity.incarnation,
            "address": self._address,
            "failure_domain": self._identity.failure_domain,
            "fingerprint": self._identity.fingerprint,
            "min_nodes": self._config.min_nodes,
            "max_nodes": self._config.max_nodes,
            "local_world_size": self._local_world_size,
            "policy": self._config.worker_policy.model_dump(mode="json"),
            "vault_port": self._vault.port if self._vault is not None else None,
            "peer_port": self._peer_port,
        }

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set(self, values: dict[str, Any]) -> None:
        with self._changed:
            self._current = replace(self._current, **values)
            self._changed.notify_all()

    def _end(self, reason: str, code: int, outcome: str | None = None) -> None:
        if self._current.end is None:
            self._set({"end": End(reason, code, outcome)})

    def _fact(self, data: Data) -> None:
        if self._link is not None:
            self._link.publish(data)

    # -- what the decider says -----------------------------------------------------------------------------------------

    def _decider_said(self, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "welcome":
                if self._election is not None:
                    self._election.member = True
                if self._welcome is not None and not self._welcome.done():
                    self._welcome.set_result(None)
                self._say_again()
            case "refused":
                self._refused(message["reason"], message["exit_code"])
            case "lost":
                self._lost()
            case "plan":
                self._take_orders(Orders.from_wire(message))
            case "replicate_to" if self._vault is not None:
                self._vault.send("replicate_to", replicate_to=message["replicate_to"])
            case "go":
                self._set({"go": message})
            case "load" if self._vault is not None:
                self._vault.send("load", generation=message["generation"])
            case "pin" | "retain" if self._vault is not None:
                self._vault.send(message.pop("kind"), **message)
            case "capture" if self._scout is not None:
                self._scout.asked(message)
            case "probe":
                self._spawn(self._answer_probe(message["generation"]))
            case "closed":
                self._run_closed(message["outcome"], message["reason"])
            case "decider_gone" if self._election is None:
                self._end(f"the rendezvous host left: {message['reason']}", 1)
            case _:
                log.debug("unknown_message", kind=message["kind"])

    def _say_again(self) -> None:
        """After a reconnect: what is not a fact and the decider may have missed."""
        if self._arrival is not None:
            self._arrive(*self._arrival)
        if self._restorable is not None and self._link is not None:
            self._link.send("restorable", generation=self._restorable)

    def _refused(self, reason: str, code: int) -> None:
        if self._welcome is not None and not self._welcome.done():
            self._welcome.set_exception(AdmissionRefused(reason, code))
            return
        self._end(reason, code)

    def _lost(self) -> None:
        """The run gave this life up: stop its workers, come back as a new one."""
        log.warning("declared_lost", node=self._identity.node, incarnation=self._identity.incarnation)
        if self._workers is not None:
            self._workers.kill()
        self._identity = replace(self._identity, incarnation=identify(None).incarnation)
        self._restorable = self._arrival = None
        self._set({"displaced": self._current.mine is not None, "mine": None})
        self._spawn(self._rejoin())

    async def _rejoin(self) -> None:
        if self._link is not None and self._link_task is not None:
            self._link_task.cancel()
        try:
            await self._connect()
        except AdmissionRefused as refused:
            self._end(refused.reason, refused.exit_code)

    def _take_orders(self, orders: Orders) -> None:
        if orders.generation <= self._current.generation:
            return
        displaced = orders.mine is None and self._current.mine is not None
        self._restorable = self._arrival = None
        self._set({"orders": orders, "mine": orders.mine, "go": None, "displaced": displaced})
        self._tell_vault_orders(orders)
        self._keep_warm()

    def _tell_vault_orders(self, orders: Orders) -> None:
        if orders.mine is not None and (orders.step == 0 or self._vault is None or not self._vault.up):
            self._restore_without_vault(orders, orders.mine)
        if self._vault is not None:
            self._vault.send(
                "generation",
                generation=orders.generation,
                slot=orders.mine.slot if orders.mine is not None else None,
                ranks=list(orders.ranks),
                replicate_to=list(orders.replicate_to),
                checkpoint={"step": orders.step, "sources": [orders.source] if orders.source is not None else []},
            )

    def _restore_without_vault(self, orders: Orders, mine: Assignment) -> None:
        if orders.step == 0:
            self._is_restorable(orders.generation)
            return
        source = orders.source or {"holder": self._identity.node, "tier": "memory"}
        self._fact(
            RestoreFailed(
                generation=orders.generation,
                node=self._identity.node,
                step=orders.step,
                slot=mine.slot,
                holder=source["holder"],
                tier=source["tier"],
                why="missing",
            )
        )

    def _ranks(self) -> tuple[int, ...]:
        """Global ranks of this node in the present generation."""
        orders = self._current.orders
        return orders.ranks if orders is not None else ()

    def _is_restorable(self, generation: int) -> None:
        self._restorable = generation
        if self._link is not None:
            self._link.send("restorable", generation=generation)

    async def _answer_probe(self, generation: int) -> None:
        if self._leaving:
            return  # this node is not to be counted on: its departure is the next fact
        await self._flush()
        if self._link is not None:
            self._link.send("alive", generation=generation)

    async def _flush(self) -> None:
        if self._vault is None or not self._vault.up:
            return
        self._flushed.clear()
        self._vault.send("flush")
        try:
            await asyncio.wait_for(self._flushed.wait(), FLUSH_S)
        except asyncio.TimeoutError:
            log.warning("vault_slow_to_flush")

    def _run_closed(self, outcome: str, reason: str) -> None:
        active = self._current.mine is not None
        if outcome == "succeeded":
            if active and self._workers is not None:
                self._workers.release(0)
            self._end(f"the run succeeded: {reason}", 0, f"{outcome} ({reason})")
        else:
            self._end(f"the run was halted: {reason}", 1 if active else 0, f"{outcome} ({reason})")

    # -- what workers say ----------------------------------------------------------------------------------------------

    def _arrive(self, generation: int, store: dict[str, Any] | None) -> None:
        self._arrival = (generation, store)
        if self._link is not None:
            self._link.send("arrived", generation=generation, store=store)

    def _started(self) -> None:
        self._fact(GenerationStarted(generation=self._said.number, node=self._identity.node))

    def _exited(self, ended: Exit) -> None:
        assert self._workers is not None
        if ended.clean:
            if self._workers.finished and not self._said.finished:
                self._said.finished = True
                self._spawn(self._report_finished())
            return
        self._exits.append(ended)
        if not self._reporting:
            self._reporting = True
            self._spawn(self._report_exits())

    async def _report_finished(self) -> None:
        await self._flush()
        self._fact(WorkersFinished(generation=self._said.number, node=self._identity.node))

    async def _report_exits(self) -> None:
        """What the vault holds first, then primary exits one by one, then the node's echoes as one fact."""
        try:
            await self._flush()
            self._publish_primaries()
            if self._exits:
                await asyncio.sleep(ECHO_GATHER_S)
                self._publish_primaries()
            if echoes := [e for e in self._exits if e.secondary]:
                self._exits = [e for e in self._exits if not e.secondary]
                first = echoes[0]
                ranks = tuple(sorted(e.rank for e in echoes))
                alone = {"rank": first.rank} if len(ranks) == 1 else {"ranks": ranks}
                self._fact(self._exit_fact(first, **alone))
        finally:
            self._reporting = False
            if self._exits:
                self._reporting = True
                self._spawn(self._report_exits())

    def _publish_primaries(self) -> None:
        for ended in [e for e in self._exits if not e.secondary]:
            self._exits.remove(ended)
            self._fact(self._exit_fact(ended, rank=ended.rank))

    def _exit_fact(self, ended: Exit, **ranks: Any) -> WorkerExited:
        return WorkerExited(
            generation=self._said.number,
            node=self._identity.node,
            exit_code=ended.exit_code,
            signal=ended.signal,
            step=ended.step,
            error=ended.error,
            **ranks,
        )

    def _trainer_said(self, message: dict[str, Any]) -> None:
        said, mine = self._said, self._current.mine
        match message["kind"]:
            case "restored" if mine is not None:
                said.restored[message["rank"]] = (message["step"], message["tier"])
                if said.restored.keys() == set(self._ranks()):
                    step, tier = message["step"], message["tier"]
                    self._fact(StateRestored(generation=said.number, node=self._identity.node, step=step, tier=tier))
            case "stepped" if message["rank"] == 0 and not said.resumed:
                said.resumed = True
                self._fact(TrainingResumed(generation=said.number, step=message["step"]))
            case "restore_failed" if mine is not None:
                self._restore_failed(message)
            case "pulse_page" if self._scout is not None:
                self._scout.trainer_said(message)
            case "degraded":
                log.error("protection_degraded", what=message["what"], why=message["why"])
            case _:
                pass

    def _restore_failed(self, message: dict[str, Any]) -> None:
        self._fact(
            RestoreFailed(
                generation=message["generation"],
                node=self._identity.node,
                step=message["step"],
                slot=message["slot"],
                holder=message["holder"],
                tier=message["tier"],
                why=message["why"],
            )
        )

    # -- what the vault says -------------------------------------------------------------------------------------------

    def _vault_said(self, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "fact":
                self._vault_fact(message["type"], message["data"])
            case "digests" if self._link is not None:
                self._link.send(**message)
            case "progress" if (
                self._current.mine is not None and self._current.mine.slot == 0 and self._link is not None
            ):
                self._link.send("progress", generation=self._current.generation, step=message["step"])
            case "restorable":
                self._is_restorable(message["generation"])
            case "restore_failed":
                self._restore_failed(message)
            case "flushed":
                self._flushed.set()
            case _:
                pass

    def _vault_fact(self, kind: str, data: dict[str, Any]) -> None:
        match kind:
            case "checkpoint_captured":
                captured = CheckpointCaptured.model_validate(data)
                self._vault_copies[(captured.generation, captured.step, captured.slot)] = (captured.step, "memory")
                self._fact(captured)
            case "checkpoint_replicated":
                copy = CheckpointReplicated.model_validate(data)
                self._vault_copies[(copy.generation, copy.step, copy.slot)] = (copy.step, "replica")
                self._fact(copy)
            case "checkpoint_dropped":
                dropped = CheckpointDropped.model_validate(data)
                self._vault_copies.pop((dropped.generation, dropped.step, dropped.slot), None)
                self._fact(dropped)
            case _:
                log.error("vault_fact_refused", type=kind)

    def _vault_lost(self) -> None:
        """The vault died: its copies are gone, and the log must know it."""
        for (generation, step, slot), (_, tier) in sorted(self._vault_copies.items()):
            self._fact(
                CheckpointDropped(
                    generation=generation, step=step, slot=slot, holder=self._identity.node, tier=tier, why="vault_lost"
                )
            )
        self._vault_copies.clear()
        log.error("unprotected", why="the vault of this node died; its copies are gone until the next generation")
        self._spawn(self._restart_vault())

    async def _restart_vault(self) -> None:
        if self._vault is not None and await self._vault.start() and self._current.orders is not None:
            self._tell_vault_orders(self._current.orders)

    # -- watching ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            link = self._link
            if link is None or self._current.end is not None:
                continue
            silent_s = time.monotonic() - link.heard
            gone = silent_s > HOST_SILENT_S or (link.refused_connections and silent_s > HOST_GONE_S)
            if gone and self._election is None:
                self._end("the rendezvous host is gone; its event log is on that machine's disk", 1)
            elif silent_s * 1000 > self._config.heartbeat_timeout_ms / 2 and not self._fencing:
                self._fencing = True
                self._spawn(self._consider_fencing())

    async def _consider_fencing(self) -> None:
        try:
            orders, link = self._current.orders, self._link
            if orders is None or self._current.mine is None or link is None or self._current.displaced:
                return
            silent_ms = self._config.heartbeat_timeout_ms // 2
            if await nobody_decides(self._secret, list(orders.peers), silent_ms * 3 // 4):
                return
            if (time.monotonic() - link.heard) * 1000 > silent_ms:
                log.error("fenced", why="this node cannot reach the decider and others can")
                self._set({"displaced": True})
        finally:
            await asyncio.sleep(0.1)
            self._fencing = False

    # -- leaving -------------------------------------------------------------------------------------------------------

    async def _leave(self, reason: str) -> None:
        closed = self._current.end is not None and self._current.end.run_closed
        for task in self._tasks:
            task.cancel()
        if self._link is not None:
            await self._link.stop(reason, LEAVE_S)
        if self._link_task is not None:
            self._link_task.cancel()
        if self._decider is not None:
            until = time.monotonic() + (OTHERS_LEAVE_S if closed else 0)
            while not self._decider.finished and time.monotonic() < until:
                await asyncio.sleep(0.02)
            await self._decider.stop(reason if self._election is None else None)
        if self._event_log is not None:
            await asyncio.to_thread(self._event_log.close)
        if self._vault is not None:
            self._vault.close(end_vault=True)
        if self._workers is not None:
            self._workers.close()
        if self._warm is not None:
            self._warm.kill()
            self._warm.wait()
        if self._meeting is not None:
            self._meeting.close()


def _acquire_lease(event_log: EventLog, run_id: str, writer: str, address: str) -> Lease:
    """The run's lease; a predecessor that died without giving it back is waited out."""
    until = time.monotonic() + 2 * LEASE_MS / 1000
    while True:
        lease = event_log.acquire_lease(run_id, holder=writer, address=address, ttl_ms=LEASE_MS)
        if lease is not None:
            return lease
        if time.monotonic() > until:
            held = event_log.lease(run_id)
            raise AdmissionRefused(f"run {run_id!r} is decided by {held.holder if held else 'another agent'}")
        time.sleep(0.1)


def _fresh_secret() -> bytes:
    log.warning("no_secret_file", why="LM_RESILIENCY_SECRET_FILE is not set; the run's secret is in its store")
    return secrets.token_bytes(32)


def _always(host: str, port: int) -> Locate:
    async def locate() -> tuple[str, int]:
        return host, port

    return locate
