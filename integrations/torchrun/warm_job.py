"""What a trainer is started with, and how a fork of the warm process waits for it."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass
from typing import Any

from lmr.integrations.torchrun import local_socket
from lmr.integrations.torchrun.process_tree import die_with_parent

DESCRIPTORS = 4
"""Standard input, output, error, and the page a trainer shares with its supervisor."""
UNMOVED_BY = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Schedulers send these to every process of a job, for its agent and its trainers: the warm process stays for those."""


@dataclass(frozen=True)
class Job:
    """What a trainer is started with."""

    interpreter: list[Any]
    """See `warm_request.interpreter`."""
    argv: list[str]
    environ: dict[str, str]
    folder: str
    path: list[str]
    supervisor: int
    ignored: list[int]
    """Signals that its supervisor was started to ignore."""
    blocked: list[int]
    """Signals that its supervisor was started to hold back."""

    @property
    def unbuffered(self) -> bool:
        """Whether the interpreter was told to write at once."""
        return self.argv[1] == "-u"

    @property
    def arguments(self) -> list[str]:
        """Everything after the interpreter and its flags."""
        return self.argv[2:] if self.unbuffered else self.argv[1:]


def await_job(warm: socket.socket, warm_pid: int) -> tuple[Job, int]:
    """In a fork: a process like one torchrun started, as soon as it has a job.

    Returns:
        The job, and the descriptor of the page.
    """
    os.setsid()
    for number in UNMOVED_BY:
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(warm_pid)
    received = local_socket.receive(warm)
    if received is None:
        os._exit(0)
    warm.close()
    message, descriptors = received
    for stream, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    return Job(**message), descriptors[3]
