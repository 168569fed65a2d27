"""The forks of the warm process: a few stand ready, each is handed one job, and all are watched.

    supervisor --- job, stdio, page ---> warm process --- the same ---> a fork that stood ready: trainer from here on
    supervisor <--- pid, exit status --- warm process <--- ends ------- trainer

Forking a process of torch's size takes longer than starting a script in it, and a recovery wants all ranks at once. As
many forks as the node has ranks are therefore made while nothing else is to be done. One more is forked at once when
none is left.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from lmr.integrations.torchrun import local_socket
from lmr.integrations.torchrun.process_tree import kill_group, kill_session
from lmr.integrations.torchrun.warm_job import DESCRIPTORS, Job, await_job
from lmr.integrations.torchrun.warm_request import interpreter

QUIET_S = 1.0
"""Forks are made ready when no trainer has been asked for so long: until then the starting ones need the processor."""
JOB_S = 2.0
"""How long a supervisor that has connected may take to say what it wants; others wait meanwhile."""


@dataclass(frozen=True)
class _Fork:
    pid: int
    ended: int
    """Descriptor of the process; readable when it has ended."""
    socket: socket.socket
    """Ready forks: where the job goes. Trainers: their supervisor."""


class WarmForks:
    """Forks trainers until the warm process is gone.

    Args:
        name: abstract socket name to listen on.
        ready: how many forks stand ready, the ranks of the node.
    """

    def __init__(self, name: str, ready: int) -> None:
        self._listener = local_socket.listen(name)
        self._wanted = ready
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._ready: list[_Fork] = []
        self._trainers: dict[int, _Fork] = {}
        """By descriptor of the process."""
        self._busy_at = time.monotonic()
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY)
        """Given up to turn a supervisor away when there is no other descriptor."""
        self._in_want = False

    def serve(self) -> tuple[Job, int]:
        """Serve; returns in a forked trainer only, with its job and the descriptor of its page."""
        while True:
            wait_s = self._busy_at + QUIET_S - time.monotonic()
            lacking = len(self._ready) < self._wanted
            events = self._selector.select(max(0.0, wait_s) if lacking else None)
            if not events and lacking and (job := self._fork()) is not None:
                return job
            for key, _ in events:
                if self._selector.get_map().get(key.fd) is not key:
                    continue  # a trainer and its supervisor ended together: the other event has seen to both
                source: Any = key.fileobj
                if source is self._listener:
                    if (job := self._asked()) is not None:
                        return job
                elif isinstance(source, socket.socket):
                    self._supervisor_gone(source)
                else:
                    self._fork_ended(int(source))

    def _fork(self) -> tuple[Job, int] | None:
        """One more ready fork, where the machine has what it takes. Returns in that fork, once it has a job."""
        try:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._wants(error)
            return None
        local_socket.make_room(ours)
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            pid = None
            self._wants(error)
        if pid == 0:
            self._let_go_of_everything()
            ours.close()
            return await_job(its, me)
        its.close()
        if pid is None:
            ours.close()
            return None
        try:
            fork = _Fork(pid, os.pidfd_open(pid), ours)
        except OSError as error:
            ours.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._wants(error)
            return None
        self._selector.register(fork.ended, selectors.EVENT_READ)
        self._ready.append(fork)
        self._in_want = False
        return None

    def _wants(self, error: OSError) -> None:
        """There are no processes, no memory or no descriptors left: trainers start cold, and it is tried again."""
        self._busy_at = time.monotonic()
        if not self._in_want:
            print(f"lmr: no fork for a warm start: {error}", file=sys.stderr)
        self._in_want = True

    def _let_go_of_everything(self) -> None:
        """In the fork: nothing of the warm process is left in it."""
        self._selector.close()
        self._listener.close()
        if self._spare is not None:
            os.close(self._spare)
        for fork in [*self._ready, *self._trainers.values()]:
            os.close(fork.ended)
            fork.socket.close()

    def _asked(self) -> tuple[Job, int] | None:
        """A supervisor wants a trainer. Returns in the trainer, where it had to be forked now."""
        self._busy_at = time.monotonic()
        supervisor = self._accepted()
        if supervisor is None:
            return None
        descriptors: list[int] = []
        try:
            local_socket.check_peer(supervisor)
            supervisor.settimeout(JOB_S)
            received = local_socket.receive(supervisor)
            supervisor.settimeout(None)
            if received is None:
                raise local_socket.LocalSocketError("no job")
            message, descriptors = received
            if len(descriptors) != DESCRIPTORS:
                raise local_socket.LocalSocketError(f"a job with {len(descriptors)} descriptors")
            if Job(**message).interpreter != interpreter():
                raise local_socket.LocalSocketError("the worker's Python is another, or has other options")
        except (OSError, TypeError, local_socket.LocalSocketError) as error:
            print(f"lmr: a warm start was refused: {error}", file=sys.stderr)
            _close(supervisor, descriptors)
            return None
        fork = self._next_ready()
        if fork is None:
            if (job := self._fork()) is not None:
                _close(supervisor, descriptors)
                return job
            fork = self._next_ready()
        if fork is None:
            _close(supervisor, descriptors)
        else:
            self._hand_over(fork, supervisor, message, descriptors)
        return None

    def _accepted(self) -> socket.socket | None:
        try:
            return self._listener.accept()[0]
        except OSError as error:
            self._wants(error)
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
            self._spare = os.open(os.devnull, os.O_RDONLY)
        return None

    def _next_ready(self) -> _Fork | None:
        """A fork that lives; something may have killed it while it stood ready."""
        while self._ready:
            fork = self._ready.pop(0)
            if os.waitid(os.P_PID, fork.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return fork
            self._reap(fork)
            fork.socket.close()
        return None

    def _hand_over(
        self, fork: _Fork, supervisor: socket.socket, message: dict[str, Any], descriptors: list[int]
    ) -> None:
        """The supervisor hears of the trainer first: one that has given up starts its own, and never are there two."""
        try:
            local_socket.send(supervisor, {"pid": fork.pid})
        except OSError:
            self._ready.append(fork)
            _close(supervisor, descriptors)
            return
        try:
            local_socket.send(fork.socket, message, descriptors)
        except OSError:  # it died just now; its supervisor is told when that is heard
            signal.pidfd_send_signal(fork.ended, signal.SIGKILL)
        _close(fork.socket, descriptors)
        self._trainers[fork.ended] = _Fork(fork.pid, fork.ended, supervisor)
        self._selector.register(supervisor, selectors.EVENT_READ, fork.pid)

    def _fork_ended(self, descriptor: int) -> None:
        trainer = self._trainers.pop(descriptor, None)
        if trainer is not None:
            self._trainer_ended(trainer)
            return
        for fork in [ready for ready in self._ready if ready.ended == descriptor]:
            self._ready.remove(fork)
            self._reap(fork)
            fork.socket.close()
            self._busy_at = time.monotonic()

    def _reap(self, fork: _Fork) -> int:
        self._selector.unregister(fork.ended)
        os.close(fork.ended)
        _, status = os.waitpid(fork.pid, 0)
        if fork.socket in self._selector.get_map():
            self._selector.unregister(fork.socket)
        return status

    def _trainer_ended(self, trainer: _Fork) -> None:
        status = self._reap(trainer)
        if status != 0:
            kill_session(trainer.pid)
        with contextlib.suppress(OSError):
            local_socket.send(trainer.socket, {"status": status})
        trainer.socket.close()

    def _supervisor_gone(self, supervisor: socket.socket) -> None:
        """A supervisor says nothing after its job: readable means that it is gone."""
        kill_group(self._selector.unregister(supervisor).data)


def _close(sock: socket.socket, descriptors: list[int]) -> None:
    sock.close()
    for descriptor in descriptors:
        os.close(descriptor)
