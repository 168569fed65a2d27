"""A node of a run: everything an agent does besides torchrun's own loop, on one asyncio loop.

All sockets, the vault and (on the host) the decider live here, so that the agent's loop never waits for any of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import structlog

from lmr.engine.events import CheckpointPersisted, Data
from lmr.integrations.scout.drift import configuration
from lmr.integrations.scout.health.watch import HealthWatch, sources
from lmr.integrations.scout.node_scout import NodeScout
from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.current import Current, End
from lmr.integrations.torchrun.errors import AdmissionRefused
from lmr.integrations.torchrun.hosting import Hosting
from lmr.integrations.torchrun.identity import Identity
from lmr.integrations.torchrun.link import Link, Locate
from lmr.integrations.torchrun.meeting import Meeting
from lmr.integrations.torchrun.orders import Orders
from lmr.integrations.torchrun.peers import serve_peers
from lmr.integrations.torchrun.process_tree import kill_group
from lmr.integrations.torchrun.solitude import Solitude
from lmr.integrations.torchrun.supervisor import FENCE_MS
from lmr.integrations.torchrun.surroundings import REAL, Surroundings
from lmr.integrations.torchrun.vault_link import vault_environ
from lmr.integrations.torchrun.vault_side import VaultSide
from lmr.integrations.torchrun.warm_side import WarmSide
from lmr.integrations.torchrun.way_in import WayIn
from lmr.integrations.torchrun.worker_reports import WorkerReports
from lmr.integrations.torchrun.workers import Exit, Workers

log = structlog.get_logger("lmr.node")

WATCH_S = 0.05
BEAT_TICKS = 4
LEAVE_S = 2.0


class Node:
    """One agent's life in a run.

    Args:
        config: checked settings.
        loop: where everything here runs, and from where it is to be called, but for what changes nothing of the node:
            `current`, `environment` and `kill_workers` may be used from any thread.
        on_change: called when `current` is another value.
        surroundings: clocks, logs, sockets and processes.
    """

    def __init__(
        self,
        config: BackendConfig,
        loop: asyncio.AbstractEventLoop,
        on_change: Callable[[], None] = lambda: None,
        surroundings: Surroundings = REAL,
    ) -> None:
        self._config = config
        self._loop = loop
        self._on_change = on_change
        self._around = surroundings
        self._identity = surroundings.identify(config.failure_domain)
        self._local_world_size = 0
        self._current = Current()
        self._meeting: Meeting | None = None
        self._hosting: Hosting | None = None
        self._link: Link | None = None
        self._link_task: asyncio.Task[None] | None = None
        self._locate: Locate | None = None
        self._secret = b""
        self._address = ""
        self._peer_port = 0
        node = self._identity.node
        self._vault = VaultSide(
            node,
            self._fact,
            self._tell_run,
            self._is_restorable,
            self._vault_progress,
            lambda reason: self._end(reason, 1),
            self._spawn,
            surroundings.vault_link,
        )
        self._reports = WorkerReports(node, self._fact, self._vault.flush, self._spawn)
        self._workers: Workers | None = None
        self._restorable: int | None = None
        self._arrival: tuple[int, dict[str, Any] | None] | None = None
        self._welcome: asyncio.Future[None] | None = None
        self._solitude: Solitude | None = None
        self._leaving = False
        self._node_name: object | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._scout: NodeScout | None = None
        self._script: Path | None = None
        self._scope = hashlib.sha256(f"{config.run_id}\0{node}".encode()).hexdigest()[:16]
        self._warm = WarmSide(self._scope)

    # -- what torchrun's agent asks and tells --------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        """This agent; the incarnation changes when the node had to rejoin."""
        return self._identity

    @property
    def address(self) -> str:
        """What peers reach this node by."""
        return self._address

    @property
    def current(self) -> Current:
        """The latest word."""
        return self._current

    def arrive(self, generation: int, store: dict[str, Any] | None) -> None:
        """This node is ready to start the generation's workers; slot 0 brings the workers' store."""
        self._arrival = (generation, store)
        self._tell_run("arrived", generation=generation, store=store)

    async def expect(self, ranks: tuple[int, ...], generation: int) -> None:
        """The agent is about to start these workers."""
        assert self._workers is not None
        self._workers.expect(generation, ranks)
        if self._scout is not None:
            self._scout.expect(generation)
        self._reports.expect(generation, ranks)
        self._spawn(self._tell_configuration())

    def kill_workers(self, more_pids: list[int]) -> None:
        """SIGKILL the current workers; `more_pids` are those the agent knows."""
        if self._workers is not None:
            self._workers.kill()
        for pid in more_pids:
            kill_group(pid)

    def told_to_leave(self) -> None:
        """The agent got a signal that ends it."""
        self._leaving = True
        if self._workers is not None:
            self._workers.leave()

    async def save_and_leave(self, patience_s: float) -> None:
        """As `told_to_leave`, and save what this node holds for at most so long."""
        self.told_to_leave()
        self._tell_run("leaving")
        await self._vault.save(patience_s)

    def stopped(self) -> None:
        """The agent is between generations; a displaced node has stopped its workers."""
        self._set({"displaced": False})

    @property
    def supervised(self) -> bool:
        """Whether every current worker reported itself."""
        return self._workers is not None and self._workers.supervised

    def unsupervised_started(self, generation: int) -> None:
        """The workers run, but say nothing of themselves."""
        if self._reports.generation == generation:
            self._reports.started()

    def unsupervised_finished(self, generation: int) -> None:
        """Workers that say nothing of themselves have all succeeded, as torchrun saw."""
        if self._reports.generation == generation:
            self._reports.finished()

    def unsupervised_failed(self, generation: int) -> None:
        """The agent saw its workers fail and no supervisor said so."""
        if self._workers is not None and self._reports.generation == generation:
            self._workers.all_lost()

    def environment(self) -> dict[str, str]:
        """What workers find in their environment."""
        assert self._workers is not None
        step = self._current.orders.step if self._current.orders is not None else 0
        return {
            "LM_RESILIENCY_GENERATION": str(self._current.generation),
            "LM_RESILIENCY_RESUME_STEP": str(step),
            "LMR_AGENT_SOCKET": self._workers.socket_name,
            **self._warm.environment(),
            "LMR_VAULT_SOCKET": self._vault.socket_name,
            FENCE_MS: str(self._fence_ms() or ""),
            "LMR_WORKER_POLICY": self._config.worker_policy.model_dump_json(),
        }

    # -- joining -------------------------------------------------------------------------------------------------------

    async def enter(self, local_world_size: int, meeting: Meeting | None, script: Path | None = None) -> None:
        """Host the run if nobody does, and be admitted.

        Args:
            local_world_size: workers of this node.
            meeting: where the agents meet; None when the database and the secret file say it all.
            script: what the workers run, where that is a file.

        Raises:
            MeetingFailed: the endpoint's host could not be reached.
            AdmissionRefused: the run does not take this agent.
            StoreError: the event log cannot be opened.
        """
        self._local_world_size, self._meeting, self._script = local_world_size, meeting, script
        way = WayIn(self._config, meeting, self._around.clock)
        self._address = way.own_address()
        writer = f"{self._identity.node}/{self._identity.incarnation}"
        self._hosting = Hosting(
            self._config,
            self._local_world_size,
            writer,
            self._address,
            on_end=lambda reason: self._end(reason, 1),
            spawn=self._spawn,
            surroundings=self._around,
        )
        self._secret, self._locate = await way.find(self._hosting, self._address)
        self._solitude = Solitude(
            self._config.heartbeat_timeout_ms,
            self._around.clock,
            self._secret,
            current=lambda: self._current,
            spawn=self._spawn,
            excused=self._tell_lease,
            fence=self._fence,
            host_gone=self._host_gone,
        )
        _, self._peer_port = await serve_peers(self._secret, self._solitude.silent_s, self._around.listen())
        self._warm.keep(self._current.generation, local_world_size)
        name = f"lmr-agent-{self._scope}-{os.getpid()}"
        self._workers = self._around.workers(name, self._reports.started, self._exited, self._trainer_said)
        if self._config.worker_policy.enable_checkpoint:
            await self._start_vault()
        self._dial()
        await self._welcomed()
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

    async def _tell_configuration(self) -> None:
        """How this node is set up, for the run to compare; reading it takes some milliseconds of a thread."""
        policy = self._config.worker_policy
        if policy.enable_detection and policy.replay.drift.enabled:
            self._tell_run("configuration", keys=await asyncio.to_thread(configuration, self._script))

    def _tell_run(self, kind: str, **values: Any) -> None:
        if self._link is not None:
            self._link.send(kind, **values)

    def _only_life_here(self) -> bool:
        """Whether no other agent of this machine, frozen ones included, stands for this node; then nobody else can."""
        try:
            self._node_name = self._around.claim(f"lmr-node-{self._scope}")
        except OSError:
            return False
        return True

    async def _start_vault(self) -> None:
        policy = self._config.worker_policy.model_dump(mode="json")
        name = f"lmr-vault-{self._scope}"
        if not self._only_life_here():
            name += f"-{os.getpid()}"  # the other life's vault is not ours to adopt, still less to end
        await self._vault.start(name, vault_environ(self._config.run_id, self._identity.node, self._secret, policy))

    @property
    def _can_move(self) -> bool:
        """Whether another agent can take over from the decider."""
        return self._hosting is not None and self._hosting.can_move

    async def _welcomed(self) -> None:
        """Wait until the run has taken this agent; a life lost meanwhile is followed by the next, which counts too."""
        assert self._welcome is not None
        try:
            await asyncio.wait_for(self._welcome, self._config.join_timeout_ms / 1000)
        except asyncio.TimeoutError:
            raise AdmissionRefused(
                "the run did not answer within the join timeout: is its secret (LM_RESILIENCY_SECRET_FILE) this node's?"
            ) from None

    def _dial(self) -> None:
        """A link of the present life, and no other."""
        assert self._locate is not None
        if self._welcome is None or self._welcome.done():
            self._welcome = self._loop.create_future()
        if self._link is not None and self._link_task is not None:
            self._link.abandon()
            self._link_task.cancel()
        timeout_s = self._config.heartbeat_timeout_ms / 1000
        silence_s = timeout_s if self._can_move else None
        self._link = Link(
            self._identity,
            self._secret,
            self._hello(),
            self._decider_said,
            timeout_s / 6,
            silence_s,
            self._around.clock,
        )
        self._link_task = self._loop.create_task(self._link.run(self._locate))
        if self._solitude is not None:
            self._solitude.follow(self._link)

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
            "vault_port": self._vault.port,
            "held": self._vault.held,
            "peer_port": self._peer_port,
        }

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set(self, values: dict[str, Any]) -> None:
        self._current = replace(self._current, **values)
        self._on_change()

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
                if self._hosting is not None:
                    self._hosting.admitted()
                if self._welcome is not None and not self._welcome.done():
                    self._welcome.set_result(None)
                self._say_again()
            case "refused":
                self._refused(message["reason"], message["exit_code"])
            case "lost":
                self._lost()
            case "plan":
                self._take_orders(Orders.from_wire(message))
            case "go":
                self._set({"go": message})
            case "replicate_to" | "load" | "pin" | "retain" | "save":
                if self._scout is not None and message["kind"] == "pin":
                    self._scout.pinned(message["step"])
                self._vault.send(message.pop("kind"), **message)
            case "capture" if self._scout is not None:
                self._scout.asked(message)
            case "probe":
                self._spawn(self._answer_probe(message["generation"]))
            case "closed":
                self._run_closed(message["outcome"], message["reason"])
            case "decider_gone" if not self._can_move:
                self._end(f"the rendezvous host left: {message['reason']}", 1)
            case _:
                log.debug("unknown_message", kind=message["kind"])

    def _say_again(self) -> None:
        """On every connection: what is not a fact, and the decider does not know or may have missed."""
        self._spawn(self._tell_configuration())
        self._vault.tell_port()
        if self._arrival is not None:
            self.arrive(*self._arrival)
        if self._restorable is not None:
            self._tell_run("restorable", generation=self._restorable)

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
        self._identity = replace(self._identity, incarnation=self._around.identify(None).incarnation)
        self._restorable = self._arrival = None
        self._set({"displaced": self._current.mine is not None, "mine": None})
        waited_for = self._welcome is not None and not self._welcome.done()
        self._dial()
        if not waited_for:  # else it was lost before it was welcomed, and who waits for that goes on waiting
            self._spawn(self._rejoin())

    async def _rejoin(self) -> None:
        try:
            await self._welcomed()
        except AdmissionRefused as refused:
            self._end(refused.reason, refused.exit_code)

    def _take_orders(self, orders: Orders) -> None:
        if orders.generation <= self._current.generation:
            return
        displaced = orders.mine is None and self._current.mine is not None
        self._restorable = self._arrival = None
        self._set({"orders": orders, "mine": orders.mine, "go": None, "displaced": displaced})
        self._vault.take(orders)
        self._warm.keep(self._current.generation, self._local_world_size)

    async def _answer_probe(self, generation: int) -> None:
        if self._leaving:
            return  # this node is not to be counted on: its departure is the next fact
        await self._vault.flush()
        self._tell_run("alive", generation=generation)

    def _run_closed(self, outcome: str, reason: str) -> None:
        active = self._current.mine is not None
        if outcome == "succeeded":
            if active and self._workers is not None:
                self._workers.release(0)
            self._end(f"the run succeeded: {reason}", 0, f"{outcome} ({reason})")
        else:
            self._end(f"the run was halted: {reason}", 1 if active else 0, f"{outcome} ({reason})")

    # -- what vault and workers say ------------------------------------------------------------------------------------

    def _is_restorable(self, generation: int) -> None:
        self._restorable = generation
        self._tell_run("restorable", generation=generation)

    def _vault_progress(self, step: int) -> None:
        if self._current.mine is not None and self._current.mine.slot == 0:
            self._tell_run("progress", generation=self._current.generation, step=step)

    def _exited(self, ended: Exit) -> None:
        assert self._workers is not None
        if not ended.clean:
            self._reports.exited(ended)
        elif self._workers.finished:
            self._reports.finished()

    def _trainer_said(self, message: dict[str, Any]) -> None:
        mine = self._current.mine
        match message["kind"]:
            case "restored" if mine is not None:
                if self._reports.restored(message["rank"], message["step"], message["tier"]):
                    self._vault.loaded(self._reports.generation)
            case "stepped" if message["rank"] == 0:
                self._reports.stepped(message["step"])
            case "restore_failed" if mine is not None:
                self._vault.restore_failed(message)
            case "persisted":
                told = {key: message[key] for key in ("generation", "step", "checkpoint_id")}
                self._fact(CheckpointPersisted(**told))
            case "pulse_page" if self._scout is not None:
                self._scout.trainer_said(message)
            case "rerun":
                self._tell_run(**message)
            case "degraded":
                log.error("protection_degraded", what=message["what"], why=message["why"])
            case "back":
                log.info("protection_back", what=message["what"], how=message["how"])
            case _:
                pass

    # -- watching ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(WATCH_S)
            ticks += 1
            if ticks % BEAT_TICKS == 0:
                self._tell_lease()
            if self._solitude is not None and self._current.end is None:
                self._solitude.look(can_move=self._can_move)

    def _tell_lease(self) -> None:
        """Supervisors hear at once until when their trainers may run: each must end its own by then."""
        if self._workers is not None:
            self._workers.beat(self._workers_until())

    def _host_gone(self) -> None:
        self._end("the rendezvous host is gone; its event log is on that machine's disk", 1)

    @property
    def _keeps_its_lease(self) -> bool:
        """An embedded host's lease nobody takes."""
        return self._meeting is not None and self._meeting.serves and self._config.embedded

    def _fence_ms(self) -> int | None:
        """How long new workers may run before they hear of this process."""
        return None if self._keeps_its_lease else self._config.heartbeat_timeout_ms * 3 // 4

    def _workers_until(self) -> float | None:
        """When the supervisors must stop the workers, should this process freeze now."""
        return None if self._keeps_its_lease or self._solitude is None else self._solitude.safe_until()

    def _fence(self) -> None:
        """Stop the workers before somebody else may take their place; the run is told when it can be reached."""
        if self._workers is not None and self._reports.fenced(self._current.generation):
            log.error("fenced", why="this node cannot reach the decider and others can")
            self._workers.kill()
            self._set({"displaced": True})

    # -- leaving -------------------------------------------------------------------------------------------------------

    async def leave(self, reason: str) -> None:
        """Leave the run: goodbye, end the vault, and on the host wait for the others first."""
        run_closed = self._current.end is not None and self._current.end.run_closed
        for task in self._tasks:
            task.cancel()
        if self._link is not None:
            await self._link.stop(reason, LEAVE_S)
        if self._link_task is not None:
            self._link_task.cancel()
        if self._hosting is not None:
            await self._hosting.stop(reason, run_closed=run_closed)
        end = self._current.end
        waits = end is not None and not run_closed and end.exit_code != 0 and not self._leaving
        # A run that lost its host goes on from the vaults it left; one that succeeded needs nothing any more.
        self._vault.close(end_vault=not waits, forget=end is not None and end.succeeded)
        if self._workers is not None:
            self._workers.close()
        self._warm.close()
        if self._meeting is not None:
            self._meeting.close()
