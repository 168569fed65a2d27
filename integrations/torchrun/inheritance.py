"""What a process inherits from the one that started it, taken from another one.

A trainer that is forked by the warm process inherits from that. `numactl`, as `torchrun --numa-binding` uses it, or a
user's own wrapper have changed the supervisor: its processors, priority, limits and file mode mask, its signals.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal

_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


def take_after(pid: int) -> None:
    """Have what another process of this user has, where that is allowed.

    Args:
        pid: the process that would have started this one; that it is gone is no error.
    """
    with contextlib.suppress(OSError):
        processors = os.sched_getaffinity(pid)
        if processors != os.sched_getaffinity(0):
            os.sched_setaffinity(0, processors)
    with contextlib.suppress(OSError):
        priority = os.getpriority(os.PRIO_PROCESS, pid)
        if priority != os.getpriority(os.PRIO_PROCESS, 0):
            os.setpriority(os.PRIO_PROCESS, 0, priority)
    for limit in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            values = resource.prlimit(pid, limit)
            if values != resource.getrlimit(limit):
                resource.setrlimit(limit, values)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("Umask:"):
                os.umask(int(line.split()[1], 8))


def take_signals(ignored: list[int], blocked: list[int]) -> None:
    """Ignore and hold back these signals and no others; the rest as in a fresh interpreter.

    Args:
        ignored: numbers of signals.
        blocked: likewise.
    """
    for number in signal.valid_signals():
        ignores = signal.getsignal(number) is signal.SIG_IGN
        if number in ignored and not ignores:
            signal.signal(number, signal.SIG_IGN)
        elif number not in ignored and number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif number not in ignored and ignores:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
