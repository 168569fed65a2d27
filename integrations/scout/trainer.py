"""Attaches SCOUT to a trainer: makes the pulse page, hooks torch, and tells the node's agent where to look.

trainer ---- {"kind": "pulse_page", pid, page, stacks, ask} ----> agent, once, over the node's socket
agent   ---- /proc/PID/fd/PAGE, read-only -----------------------> reads the page from then on
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator

from lmr.integrations.frameworks.trainer_context import TrainerContext
from lmr.integrations.scout import page
from lmr.integrations.scout.evidence import STACKS_SIGNAL, Evidence
from lmr.integrations.scout.pulse import Pulse
from lmr.integrations.torchrun import local_socket

__all__ = ["long_section"]

_pulse: Pulse | None = None


def attach(context: TrainerContext) -> Pulse | None:
    """Observe this trainer from here on; None when its agent cannot be told. Call after `import torch`, once."""
    global _pulse
    from lmr.integrations.scout import batch_order, collectives, torch_hooks

    fd, memory = page.create(context.rank, context.generation)
    evidence = Evidence()
    evidence.install()
    if not _announce(context, fd, evidence):
        return None
    _pulse = Pulse(memory, context.resume_step)
    batches = context.replay.get("batches", {})
    if batches.get("enabled"):
        batch_order.install(_pulse, batches["most_samples"])
    torch_hooks.install(_pulse)
    collectives.install(_pulse)
    atexit.register(_leave, _pulse)
    return _pulse


def current() -> Pulse | None:
    """This trainer's pulse, once it is observed."""
    return _pulse


def _leave(pulse: Pulse) -> None:
    """The interpreter ends: however long that takes is no hang, and nobody looks into what is being taken apart."""
    pulse.enter(page.Phase.DECLARED)
    faulthandler.unregister(STACKS_SIGNAL)
    signal.signal(STACKS_SIGNAL, signal.SIG_IGN)  # asked for a moment ago, it would kill now


def _announce(context: TrainerContext, fd: int, evidence: Evidence) -> bool:
    who = {"rank": context.rank, "pid": os.getpid(), "generation": context.generation}
    try:
        with local_socket.connect(context.agent_socket) as agent:
            local_socket.send(agent, {"kind": "hello", "role": "trainer", **who})
            local_socket.send(
                agent,
                {"kind": "pulse_page", **who, "page": fd, "stacks": evidence.stacks_fd, "ask": evidence.socket_name},
            )
    except (OSError, local_socket.LocalSocketError) as error:
        print(f"lmr: rank {context.rank} is not observed, its node runtime cannot be told: {error}", file=sys.stderr)
        return False
    return True


@contextlib.contextmanager
def long_section(_why: str = "") -> Iterator[None]:
    """Declare that what follows takes as long as it takes: no hang, no slow step.

    Needed only for what is not recognized: evaluations, saves, compilations and first steps are.
    """
    if _pulse is None:
        yield
        return
    before = _pulse.enter(page.Phase.DECLARED)
    try:
        yield
    finally:
        _pulse.enter(before)
