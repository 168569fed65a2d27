"""The faults of a campaign: each does one thing to real processes, cables or the log, and says what it did."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.campaign import Round

Fault = Callable[["Round", random.Random], str | None]
"""Returns what was done, or None when there was nothing to do it to."""


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _one(chance: random.Random, pids: dict[int, int]) -> tuple[int, int] | None:
    return chance.choice(sorted(pids.items())) if pids else None


# -- processes ---------------------------------------------------------------------------------------------------------


def kill_trainer(run: Round, chance: random.Random) -> str | None:
    node = chance.choice(run.active())
    if (found := _one(chance, run.cluster.trainers(node))) is None:
        return None
    _signal([found[1]], signal.SIGKILL)
    return f"SIGKILL to the trainer of rank {found[0]} on {node}"


def kill_supervisor(run: Round, chance: random.Random) -> str | None:
    node = chance.choice(run.active())
    if (found := _one(chance, run.cluster.workers(node))) is None:
        return None
    _signal([found[1]], signal.SIGKILL)
    return f"SIGKILL to the process torchrun knows of rank {found[0]} on {node}"


def terminate_trainer(run: Round, chance: random.Random) -> str | None:
    node = chance.choice(run.active())
    if (found := _one(chance, run.cluster.trainers(node))) is None:
        return None
    _signal([found[1]], signal.SIGTERM)
    return f"SIGTERM to the trainer of rank {found[0]} on {node}"


def freeze_trainer(run: Round, chance: random.Random) -> str | None:
    node = chance.choice(run.active())
    if (found := _one(chance, run.cluster.trainers(node))) is None:
        return None
    seconds = chance.uniform(0.5, 3)
    _signal([found[1]], signal.SIGSTOP)
    run.later(seconds, lambda: _signal([found[1]], signal.SIGCONT))
    return f"SIGSTOP for {seconds:.1f} s to the trainer of rank {found[0]} on {node}"


def kill_warm_process(run: Round, chance: random.Random) -> str | None:
    node = chance.choice(run.living())
    pids = run.named(node, "lmr.integrations.torchrun.warm")
    _signal(pids, signal.SIGKILL)
    return f"SIGKILL to the warm process of {node}" if pids else None


# -- agents and machines -----------------------------------------------------------------------------------------------


def kill_agent(run: Round, chance: random.Random) -> str | None:
    if (node := run.expendable(chance)) is None:
        return None
    _signal([run.cluster.agents[node].process.pid], signal.SIGKILL)
    run.relaunch_later(node, chance)
    return f"SIGKILL to the agent of {node} alone"


def kill_machine(run: Round, chance: random.Random) -> str | None:
    if (node := run.expendable(chance)) is None:
        return None
    run.cluster.kill_machine(node)
    run.relaunch_later(node, chance)
    return f"everything on {node} is gone"


def kill_a_rank_and_a_machine(run: Round, chance: random.Random) -> str | None:
    first = kill_trainer(run, chance)
    time.sleep(chance.uniform(0, 1.5))
    second = kill_machine(run, chance)
    return f"{first}; then {second}" if first and second else first or second


def freeze_machine(run: Round, chance: random.Random) -> str | None:
    node = chance.choice(run.living())
    seconds = chance.choice((0.4, 1.5, 6.0, 12.0))
    pids = run.cluster.processes(node)
    _signal(pids, signal.SIGSTOP)
    run.later(seconds, lambda: _signal(pids, signal.SIGCONT))
    return f"SIGSTOP for {seconds} s to everything on {node}"


def freeze_agent(run: Round, chance: random.Random) -> str | None:
    node = chance.choice(run.living())
    seconds = chance.uniform(0.2, 1.0)  # below the lease: its workers cannot be stopped by it meanwhile
    pid = run.cluster.agents[node].process.pid
    _signal([pid], signal.SIGSTOP)
    run.later(seconds, lambda: _signal([pid], signal.SIGCONT))
    return f"SIGSTOP for {seconds:.1f} s to the agent of {node} alone"


def leave(run: Round, chance: random.Random) -> str | None:
    if (node := run.expendable(chance)) is None:
        return None
    _signal([run.cluster.agents[node].process.pid], signal.SIGTERM)
    run.relaunch_later(node, chance)
    return f"SIGTERM to the agent of {node}"


# -- the log -----------------------------------------------------------------------------------------------------------


def log_away(run: Round, chance: random.Random) -> str | None:
    seconds = chance.choice((0.5, 2.0, 6.0))
    if run.server is not None:
        run.server.stop("immediate")
        run.later(seconds, run.server.start)
        return f"the database is away for {seconds} s"
    lock = sqlite3.connect(run.cluster.event_log, timeout=5, isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN IMMEDIATE")
    run.later(seconds, lock.close)
    return f"the log is locked for {seconds} s"


# -- the network -------------------------------------------------------------------------------------------------------


def cut_off(run: Round, chance: random.Random) -> str | None:
    if run.machines is None or (node := run.expendable(chance)) is None:
        return None
    seconds = chance.choice((0.5, 1.6, 3.0, 8.0))
    run.machines.cut_off(node)
    run.later(seconds, lambda: run.machines and run.machines.reconnect(node))
    return f"{node} is cut off for {seconds} s"


def divide(run: Round, chance: random.Random) -> str | None:
    if run.machines is None:
        return None
    seconds = chance.choice((0.5, 1.6, 3.0, 8.0))
    run.machines.divide()
    run.later(seconds, run.machines.unite)
    return f"the two switches are apart for {seconds} s"


# -- checkpoints -------------------------------------------------------------------------------------------------------


def kill_vault(run: Round, chance: random.Random) -> str | None:
    node = chance.choice(run.living())
    pids = run.named(node, "lmr.integrations.gemini.vault")
    _signal(pids, signal.SIGKILL)
    return f"SIGKILL to the vault of {node}" if pids else None


def flip_a_byte(run: Round, chance: random.Random) -> str | None:
    """One byte of a vault's memory is wrong, and a moment later its copies are needed."""
    node = chance.choice(run.living())
    for pid in run.named(node, "lmr.integrations.gemini.vault"):
        regions = [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if "memfd:" in str(fd.readlink())]
        if not regions:
            continue
        with chance.choice(sorted(regions)).open("r+b", buffering=0) as memory:
            size = memory.seek(0, 2)
            at = chance.randrange(max(size, 1))
            memory.seek(at)
            byte = memory.read(1)
            memory.seek(at)
            memory.write(bytes([byte[0] ^ 0xFF]) if byte else b"")
        return f"a byte of {node}'s copies is flipped; {kill_trainer(run, chance)}"
    return None


FAULTS: tuple[Fault, ...] = (
    kill_trainer,
    kill_supervisor,
    terminate_trainer,
    freeze_trainer,
    kill_warm_process,
    kill_agent,
    kill_machine,
    kill_a_rank_and_a_machine,
    freeze_machine,
    freeze_agent,
    leave,
    log_away,
    kill_vault,
    flip_a_byte,
)
NETWORK_FAULTS: tuple[Fault, ...] = (cut_off, divide)
