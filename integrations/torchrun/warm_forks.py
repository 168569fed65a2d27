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
from lmr.integrations.torchrun.process_tree import die_with_parent

QUIET_S = 1.0
"""Forks are made ready when no trainer has been asked for so long: until then the starting ones need the processor."""
DESCRIPTORS = 4
"""Standard input, output, error, and the page a trainer shares with its supervisor."""


@dataclass(frozen=True)
class Job:
    """What a trainer is started with."""

    argv: list[str]
    environ: dict[str, str]
    folder: str
    path: list[str]
    supervisor: int

    @property
    def arguments(self) -> list[str]:
        """Everything after the interpreter and its flags."""
        return self.argv[2:] if self.argv[1] == "-u" else self.argv[1:]


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
        """One more ready fork. Returns in that fork, once it has a job."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._let_go_of_everything()
            ours.close()
            return _await_job(its, me)
        its.close()
        fork = _Fork(pid, os.pidfd_open(pid), ours)
        self._selector.register(fork.ended, selectors.EVENT_READ)
        self._ready.append(fork)
        return None

    def _let_go_of_everything(self) -> None:
        """In the fork: nothing of the warm process is left in it."""
        self._selector.close()
        self._listener.close()
        for fork in [*self._ready, *self._trainers.values()]:
            os.close(fork.ended)
            fork.socket.close()

    def _asked(self) -> tuple[Job, int] | None:
        """A supervisor wants a trainer. Returns in the trainer, where it had to be forked now."""
        self._busy_at = time.monotonic()
        supervisor, _ = self._listener.accept()
        try:
            local_socket.check_peer(supervisor)
            supervisor.settimeout(5)
            received = local_socket.receive(supervisor)
            if received is None or len(received[1]) != DESCRIPTORS:
                raise local_socket.LocalSocketError("no job")
            Job(**received[0])
        except (OSError, TypeError, local_socket.LocalSocketError) as error:
            print(f"lmr: a warm start was refused: {error}", file=sys.stderr)
            supervisor.close()
            return None
        message, descriptors = received
        supervisor.settimeout(None)
        while True:
            if not self._ready and (job := self._fork()) is not None:
                _close(supervisor, descriptors)
                return job
            fork = self._ready.pop(0)
            try:
                local_socket.send(fork.socket, message, descriptors)
                break
            except OSError:  # something killed it while it stood ready
                self._reap(fork)
        _close(fork.socket, descriptors)
        self._trainers[fork.ended] = _Fork(fork.pid, fork.ended, supervisor)
        self._selector.register(supervisor, selectors.EVENT_READ, fork.pid)
        with contextlib.suppress(OSError):
            local_socket.send(supervisor, {"pid": fork.pid})
        return None

    def _fork_ended(self, descriptor: int) -> None:
        trainer = self._trainers.pop(descriptor, None)
        if trainer is not None:
            self._trainer_ended(trainer)
            return
        for fork in [ready for ready in self._ready if ready.ended == descriptor]:
            self._ready.remove(fork)
            self._reap(fork)
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
            _kill_session(trainer.pid)
        with contextlib.suppress(OSError):
            local_socket.send(trainer.socket, {"status": status})
        trainer.socket.close()

    def _supervisor_gone(self, supervisor: socket.socket) -> None:
        """A supervisor says nothing after its job: readable means that it is gone."""
        pid = self._selector.unregister(supervisor).data
        _kill_session(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _close(sock: socket.socket, descriptors: list[int]) -> None:
    sock.close()
    for descriptor in descriptors:
        os.close(descriptor)


def _await_job(warm: socket.socket, warm_pid: int) -> tuple[Job, int]:
    """In a fork: a process like one torchrun started, as soon as it has a job."""
    os.setsid()
    die_with_parent(warm_pid)
    received = local_socket.receive(warm)
    if received is None:
        os._exit(0)
    warm.close()
    message, descriptors = received
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return Job(**message), descriptors[3]


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
