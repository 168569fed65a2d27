"""The rendezvous handler: how torchrun meets the committed plan.

    next_rendezvous      park until a committed plan names this node, arrive, start what it orders
    num_nodes_waiting    is there a newer plan? then kill the old workers and say "membership changed"
    shutdown             goodbye

torchrun sees healthy workers (their supervisors hold) until a plan is there; a change of membership uses none of its
restart budget. Nothing here raises except on purpose: an exception would end the agent and its workers.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import structlog
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from lmr.integrations.torchrun.agent_view import AgentView
from lmr.integrations.torchrun.config import BackendConfig, read_config
from lmr.integrations.torchrun.current import Current, End
from lmr.integrations.torchrun.entry import BACKEND
from lmr.integrations.torchrun.errors import AdmissionRefused, ConfigInvalid, MeetingFailed
from lmr.integrations.torchrun.identity import node_id
from lmr.integrations.torchrun.leaving import end_process
from lmr.integrations.torchrun.restart_context import closed_outcome, context_path, write_context
from lmr.integrations.torchrun.runtime import NodeRuntime
from lmr.integrations.torchrun.turns import parked, working
from lmr.integrations.torchrun.worker_command import ignores_us
from lmr.store import StoreError

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

log = structlog.get_logger("lmr.handler")

LOOK_S = 0.5
WORKING_LOOK_S = 0.08
"""How long a look for a newer plan lasts; one that comes meanwhile is seen at once."""
BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"
LEAVE_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""Meant for training scripts: a parked agent has none yet and survives, unless `--signals-to-handle` names them."""
CANNOT_REPORT = "the workers' Python ignores PYTHONPATH (-E, -I, -S) or they are no Python script"
CANNOT_REPORT_S = 2.0
"""Workers that look as if they will never report themselves, and have not by then, will not."""
SILENT_S = 60.0
"""No other worker takes so long for its first line of Python; half of `start_s` where that is less."""


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Check the settings and return the handler; a mistake ends the agent with one line and exit code 1."""
    try:
        node_id()  # a name that cannot be used is a mistake like any other setting
        return LmrHandler(read_config(params))
    except ConfigInvalid as error:
        end_process(str(error), 1)


class LmrHandler(RendezvousHandler):
    """One agent's handler.

    Args:
        config: checked settings.
    """

    def __init__(self, config: BackendConfig) -> None:
        self._config = config
        self._runtime: NodeRuntime | None = None
        self._generation = -1
        self._store: TCPStore | None = None
        self._stop_signal: int | None = None
        self._begun = 0.0
        self._unprotected = False
        atexit.register(self._leave, "the agent's process ended")

    # -- the interface -------------------------------------------------------------------------------------------------

    def get_backend(self) -> str:
        """The name the user typed."""
        return BACKEND

    def get_run_id(self) -> str:
        """The user's `--rdzv-id`."""
        return self._config.run_id

    @property
    def use_agent_store(self) -> bool:
        """Workers are clients of a store this agent serves, a fresh one each generation."""
        return True

    def is_closed(self) -> bool:
        """Whether the run is over; torchrun does not ask."""
        return self._runtime is not None and self._runtime.current().end is not None

    def set_closed(self) -> None:
        """Nothing: only a committed decision closes a run."""

    def num_nodes_waiting(self) -> int:
        """1 when a newer committed plan orders a change; the old workers are dead by then."""
        runtime = self._runtime
        if runtime is None:
            return 0
        self._note_termination(runtime)
        now = runtime.current()
        if working(now, self._generation) == "go on":
            now = runtime.wait_for_change(now, WORKING_LOOK_S)
        agent = AgentView.of_caller()
        match working(now, self._generation):
            case "end":
                assert now.end is not None
                runtime.kill_workers(agent.pids())
                self._finish(now.end)
            case "stop":
                runtime.kill_workers(agent.pids())
                agent.archive_logs(self._generation)
                return 1
            case "go on":
                pass
        self._check_protection(runtime, agent)
        return 0

    def next_rendezvous(self) -> RendezvousInfo:
        """Park until a committed plan names this node and all its nodes have arrived.

        Returns:
            rank = slot, world size = number of slots, and the generation's own fresh store.
        """
        agent = AgentView.of_caller()
        with self._signals_while_parked():
            if self._runtime is None:
                agent.look_often()
                self._join(agent)
            elif self._generation >= 0:
                self._between()
            return self._next()

    def shutdown(self) -> bool:
        """Leave. Called on every exit but a signal's, local errors included: it does not mean the job is finished."""
        self._leave("torchrun ended")
        return True

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _join(self, agent: AgentView) -> None:
        os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"  # ranks follow from slots; no store round is needed
        self._refuse_if_closed()
        runtime = NodeRuntime(self._config)
        self._runtime = runtime
        try:
            runtime.join(agent.local_world_size(), lambda: self._stop_signal is not None, agent.script())
        except AdmissionRefused as refused:
            self._leave("refused")
            end_process(refused.reason, refused.exit_code)
        except (MeetingFailed, StoreError) as error:
            if self._stop_signal is not None:
                self._finish(End("told to leave while joining", 0))
            self._leave("could not join")
            end_process(str(error), 1)

    def _refuse_if_closed(self) -> None:
        """The run is over, as this node knows: nobody may be left at the endpoint to say so."""
        if self._config.restart_context is None:
            return
        outcome = closed_outcome(context_path(self._config.restart_context, node_id()), self._config.run_id)
        if outcome is not None:
            end_process(f"run {self._config.run_id!r} is closed: {outcome[0]}", outcome[1])

    def _between(self) -> None:
        """A generation is over for this node."""
        assert self._runtime is not None
        now = self._runtime.current()
        if now.generation == self._generation and not now.displaced and now.end is None:
            # torchrun restarts what it saw fail: a supervisor died, or there was none
            self._runtime.report_unsupervised_failure(self._generation)
        self._runtime.stopped()

    def _next(self) -> RendezvousInfo:
        assert self._runtime is not None
        runtime = self._runtime
        now, arrived = runtime.current(), self._generation
        while True:
            if self._stop_signal is not None:
                self._finish(End(f"signal {self._stop_signal} while parked", 0))
            match parked(now, self._generation, arrived):
                case "end":
                    assert now.end is not None
                    self._finish(now.end)
                case "arrive":
                    arrived = now.generation
                    runtime.arrive(arrived, self._serve_store(now))
                    self._write_context(now)  # while the others arrive
                case "begin":
                    return self._begin(now)
                case "wait":
                    pass
            now = runtime.wait_for_change(now, LOOK_S)

    def _serve_store(self, now: Current) -> dict[str, Any] | None:
        """On slot 0: a fresh store for the workers. Stores are never used again: their addresses are stale by then."""
        self._store = None
        if now.mine is None or now.mine.slot != 0:
            return None
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300))
        return {"host": self._runtime.address if self._runtime else "localhost", "port": self._store.port}

    def _begin(self, now: Current) -> RendezvousInfo:
        assert self._runtime is not None
        assert now.mine is not None
        assert now.orders is not None
        assert now.go is not None
        self._generation = now.generation
        self._begun, self._unprotected = time.monotonic(), False
        self._runtime.starting(now.orders.ranks, now.generation)
        os.environ.update(self._runtime.environment())
        _put_bootstrap_first()
        store = now.go["store"]
        return RendezvousInfo(
            store=_NoWaiting(now.orders.slots, self._work_done),
            rank=now.mine.slot,
            world_size=now.orders.slots,
            bootstrap_store_info=RendezvousStoreInfo(master_addr=store["host"], master_port=store["port"]),
        )

    def _write_context(self, now: Current) -> None:
        if self._config.restart_context is None or now.orders is None or self._runtime is None:
            return
        node = self._runtime.identity.node
        try:
            write_context(
                context_path(self._config.restart_context, node),
                run=self._config.run_id,
                node=node,
                generation=now.generation,
                slot=now.mine.slot if now.mine is not None else None,
                plan=now.orders.plan_id,
                head=now.orders.head,
                closed=_closed(now),
            )
        except OSError as error:
            log.error("restart_context_not_written", why=str(error))

    def _finish(self, end: End) -> NoReturn:
        """Leave and end the agent's process; the reason is its last line."""
        self._leave(end.reason)
        end_process(end.reason, end.exit_code)

    def _leave(self, reason: str) -> None:
        if self._runtime is not None:
            if _closed(self._runtime.current()):
                self._write_context(self._runtime.current())
            self._runtime.close(reason)
        self._store = None

    def _check_protection(self, runtime: NodeRuntime, agent: AgentView) -> None:
        """Workers report themselves as their first act. Those that do not run unprotected, but have started."""
        if runtime.supervised:
            if self._unprotected:
                self._unprotected = False
                log.info("protection_back", how="the workers have reported themselves after all")
            return
        silent_s = time.monotonic() - self._begun
        if self._unprotected or silent_s <= CANNOT_REPORT_S:
            return
        most_s = min(SILENT_S, self._config.worker_policy.recovery.start_s / 2)
        if any(ignores_us(pid) for pid in agent.pids()):
            self._run_unprotected(runtime, CANNOT_REPORT)
        elif silent_s > most_s:
            self._run_unprotected(runtime, f"the workers have not reported themselves for {most_s:.0f} s")

    def _run_unprotected(self, runtime: NodeRuntime, why: str) -> None:
        self._unprotected = True
        log.error("unprotected", why=why)
        runtime.report_unsupervised_start(self._generation)

    def _work_done(self) -> None:
        """torchrun saw all workers succeed. Supervised ones end with the run; others may be ahead of their peers."""
        runtime = self._runtime
        if runtime is None or runtime.supervised:
            return
        if not self._unprotected:
            self._run_unprotected(runtime, CANNOT_REPORT)
        runtime.report_unsupervised_finish(self._generation)
        now = runtime.current()
        while now.end is None and now.generation == self._generation and not now.displaced:
            now = runtime.wait_for_change(now, LOOK_S)

    def _note_termination(self, runtime: NodeRuntime) -> None:
        """torchelastic installs its handlers with each worker group; ours go first and say that no failure follows."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in LEAVE_SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _Leaving):
                patience_s = self._config.worker_policy.checkpoint.grace_s if number == signal.SIGTERM else 0
                signal.signal(number, _Leaving(runtime, handler, patience_s))

    @contextlib.contextmanager
    def _signals_while_parked(self) -> Iterator[None]:
        """torchelastic installs handlers only when it starts workers; a parked agent must not die without a goodbye."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, _frame: FrameType | None) -> None:
            self._stop_signal = number

        def ignore(number: int, _frame: FrameType | None) -> None:
            log.info("signal_ignored", signal=signal.Signals(number).name, why="this agent is parked")

        handled = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "").split(",")
        before = {number: signal.signal(number, note) for number in LEAVE_SIGNALS}
        before |= {number: signal.signal(number, note if number.name in handled else ignore) for number in USER_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _closed(now: Current) -> dict[str, Any] | None:
    """How the run ended, for the restart context; None while it has not."""
    if now.end is None or now.end.outcome is None:
        return None
    return {"reason": now.end.outcome, "exit_code": now.end.exit_code}


class _Leaving:
    """A signal handler: the operator ends this agent, so what its workers do from here on is no failure of theirs.

    Args:
        runtime: is told.
        then: the handler that was installed; it raises.
        patience_s: how long the node's state is saved before.
    """

    def __init__(self, runtime: NodeRuntime, then: Callable[[int, FrameType | None], Any], patience_s: float) -> None:
        self._runtime = runtime
        self._patience_s = patience_s
        self._then = then

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        self._runtime.told_to_leave(self._patience_s)
        return self._then(number, frame)


class _NoWaiting(Store):
    """The store torchrun gets for itself: it is used for the exit barrier only, and there is nothing to wait for.

    Workers end when the run is closed, on all nodes at once; a peer that died meanwhile must not cost 300 seconds.
    """

    def __init__(self, members: int, on_barrier: Callable[[], None]) -> None:
        super().__init__()
        self._members = members
        self._on_barrier = on_barrier
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self._values[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        self._on_barrier()
        return self._members

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        return

    def set_timeout(self, timeout: timedelta) -> None:
        return


def _put_bootstrap_first() -> None:
    """Python imports the first `sitecustomize` on its path; ours runs the one it hides."""
    ours = str(BOOTSTRAP)
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != ours]
    os.environ["PYTHONPATH"] = os.pathsep.join([ours, *others])
