"""The thin supervisor between torchrun and a trainer.

    torchrun agent --- watches ---> supervisor --- fork, reaps ---> trainer (the user's script)
          ^                             |                              |
          +---- hello, exited, exit ----+                              +--- PDEATHSIG: dies with the supervisor

torchrun restarts at once, and on its own budget, whatever exits. A supervisor outlives its trainer instead: it reports
the exit and holds until the node runtime says what is next. Torchrun goes on seeing a healthy worker until a committed
plan changes the membership. It is the process torchrun knows, so stdio, pid and process group stay what they were.
A runtime that is frozen cannot stop its workers before its lease is taken: then the supervisor ends the trainer.
"""

from __future__ import annotations

import os
import select
import sys
import time

from lmr.integrations.torchrun import local_message, warm_request
from lmr.integrations.torchrun.local_message import LocalSocketError
from lmr.integrations.torchrun.process_tree import adopt_orphans, die_with_parent, kill_rest_of_group
from lmr.integrations.torchrun.worker_page import WorkerPage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from types import FrameType
    from typing import Any, NoReturn
else:
    import _signal as signal  # see `local_message`: what wraps it costs more than all else here

SUPERVISED_BY = "LMR_SUPERVISED_BY"
"""Set in the trainer: its supervisor's pid. Python processes below it are no workers."""
FENCE_MS = "LMR_FENCE_MS"
"""A trainer ends when its agent has said nothing for so long from its start on; later its agent says until when.

Empty: its agent's lease is nobody else's to take.
"""
TERM_GRACE_S = 1.0
"""How long a supervisor that was told to terminate still waits for the runtime's word after its trainer is gone."""

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def start() -> None:
    """Split this process into supervisor and trainer; returns in the trainer only.

    Without an agent to report to, nothing is split and the script runs as under plain torchrun.
    """
    try:
        agent = local_message.connect(os.environ["LMR_AGENT_SOCKET"])
    except (OSError, LocalSocketError) as error:
        print(f"lmr: no node runtime to report to ({error}); this worker runs unprotected", file=sys.stderr)
        return
    page = WorkerPage()
    # Blocked until each side has its own handlers: a signal in between must not be lost or kill only one of the two.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    agent_pid, supervisor_pid = os.getppid(), os.getpid()
    try:
        warm = warm_request.ask(page.fd, before)
        trainer = os.fork() if warm is None else warm.pid
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        agent.close()
        raise
    if trainer:
        _Supervisor(agent, trainer, page, agent_pid, warm).run(before)
    agent.close()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    die_with_parent(supervisor_pid)
    become_trainer(page, supervisor_pid)


def become_trainer(page: WorkerPage, supervisor_pid: int) -> None:
    """Describe uncaught errors, and attach to the framework once it is imported."""
    os.environ[SUPERVISED_BY] = str(supervisor_pid)
    from lmr.integrations.frameworks import import_hook, trainer_context
    from lmr.integrations.torchrun import exit_errors

    exit_errors.install(page)
    trainer_context.enter(page)
    import_hook.install()


def _empty(pipe: int) -> None:
    try:
        os.read(pipe, 4096)
    except BlockingIOError:
        return


def _signal_name(number: int) -> str:
    """As `signal.Signals` names it; of two names the same one."""
    names = [name for name in dir(signal) if name.startswith("SIG") and getattr(signal, name) == number]
    named = [name for name in names if not name.startswith("SIG_")]
    return min(named, default=f"SIG{number}")  # real-time signals between the first and the last have no name


class _Supervisor:
    """Reports one trainer and holds after its end. Never returns into the interpreter's start-up."""

    def __init__(
        self,
        agent: socket.socket,
        trainer: int,
        page: WorkerPage,
        agent_pid: int,
        warm: warm_request.WarmTrainer | None = None,
    ) -> None:
        self._agent = agent
        self._warm = warm
        self._trainer = trainer
        self._page = page
        self._agent_pid = agent_pid
        self._rank = int(os.environ["RANK"])
        self._generation = int(os.environ.get("LM_RESILIENCY_GENERATION", "0"))
        self._told_to_end: int | None = None
        self._term_deadline = 0.0
        self._wait_status: int | None = None
        fence_ms = os.environ.get(FENCE_MS)
        self._fence_at = time.monotonic() + int(fence_ms) / 1000 if fence_ms else None

    def run(self, mask_before: Any) -> NoReturn:
        try:
            die_with_parent(self._agent_pid)
            adopt_orphans()
            wake = self._install_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask_before)
            self._say(
                {
                    "kind": "hello",
                    "role": "supervisor",
                    "rank": self._rank,
                    "local_rank": int(os.environ.get("LOCAL_RANK", "0")),
                    "pid": os.getpid(),
                    "generation": self._generation,
                }
            )
            self._watch(wake)
        except BaseException as error:  # noqa: BLE001  the last line of a process: say it and take the trainer along
            print(f"lmr: the supervisor of rank {self._rank} failed: {error!r}", file=sys.stderr)
            self._end_group()
        os._exit(1)

    def _install_signals(self) -> int:
        wake_r, wake_w = os.pipe()
        for fd in (wake_r, wake_w):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return wake_r

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._told_to_end = number
            self._term_deadline = time.monotonic() + TERM_GRACE_S
        if self._wait_status is None:
            self._kill_trainer(number)

    def _kill_trainer(self, number: int) -> None:
        try:
            os.kill(self._trainer, number)
        except ProcessLookupError:
            return

    def _watch(self, wake: int) -> None:
        """Until the runtime says exit, the runtime is gone, or a termination has run its course."""
        self._reap()  # it may have been gone before there was a handler
        while True:
            timeout = None
            if self._wait_status is not None and self._told_to_end is not None:
                timeout = max(0.0, self._term_deadline - time.monotonic())
                if timeout == 0.0:
                    self._leave_as_trainer_did()
            elif self._wait_status is None and self._fence_at is not None:
                timeout = max(0.0, self._fence_at - time.monotonic())
            watched: list[Any] = [self._agent, wake]
            if self._warm is not None:
                watched += self._warm.watched()
                timeout = self._warm.most_s(timeout)
            readable, _, _ = select.select(watched, [], [], timeout)
            if wake in readable:
                _empty(wake)
                self._reap()
            if self._warm is not None and (status := self._warm.status(readable)) is not None:
                self._warm = None
                self._ended(status)
            if self._agent in readable:
                self._obey()
            elif self._fence_at is not None and time.monotonic() > self._fence_at:
                self._fence()

    def _fence(self) -> None:
        """The runtime does not run: another machine may be this rank soon."""
        self._fence_at = None
        if self._wait_status is None:
            print(f"lmr: the agent is frozen; rank {self._rank} is stopped before its lease ends", file=sys.stderr)
            self._kill_trainer(signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._trainer:
                self._ended(status)

    def _ended(self, status: int) -> None:
        self._wait_status = status
        self._term_deadline = time.monotonic() + TERM_GRACE_S
        self._report(status)

    def _report(self, status: int) -> None:
        killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        error = self._page.read_error() if code != 0 else None
        # A process that dies of an error may still be aborted on its way out by a library's destructors: then the error
        # and not the signal is what happened.
        if error is None and killed_by is not None:
            # Equal signals on all ranks are not one software error: an out-of-memory killer looks just the same.
            error = {"kind": "signal", "type": _signal_name(killed_by), "fingerprint": None}
        elif error is None and code != 0:
            error = {"kind": "unknown", "type": None, "fingerprint": None}
        self._say(
            {
                "kind": "exited",
                "rank": self._rank,
                "generation": self._generation,
                "exit_code": code,
                "signal": killed_by,
                "step": self._page.read_step(),
                "error": error,
            }
        )
        if code != 0:
            kill_rest_of_group()

    def _obey(self) -> None:
        try:
            received = local_message.receive(self._agent)
        except LocalSocketError:
            return
        if received is None:
            self._end_group()  # fenced: whoever outlives its node runtime trains on without anybody's leave
        elif received[0].get("kind") == "here":
            self._fence_at = received[0]["until_s"]
        elif received[0].get("kind") == "exit":
            if self._wait_status is None:
                self._kill_trainer(signal.SIGKILL)
            os._exit(int(received[0].get("code", 1)))

    def _leave_as_trainer_did(self) -> NoReturn:
        status = self._wait_status or 0
        if os.WIFSIGNALED(status):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.WEXITSTATUS(status))

    def _say(self, message: dict[str, Any]) -> None:
        try:
            local_message.send(self._agent, message)
        except OSError as error:
            print(f"lmr: rank {self._rank} cannot reach its node runtime: {error}", file=sys.stderr)

    def _end_group(self) -> NoReturn:
        kill_rest_of_group()
        os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
