"""The faults of a campaign: each does one thing to real processes, cables, the log or copies, and says what it did."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from chaos.campaign import Round

Fault = Callable[["Round", random.Random], str | None]
"""Returns what was done, or None when there was nothing to do it to."""


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _one(chance: random.Random, pids: dict[int, int]) -> tuple[int, int] | None:
    return chance.choice(sorted(pids.items())) if pids else None


# -- processes ---------------------------------------------------------------------------------------------------------


def _trainer(run: Round, chance: random.Random, number: int, what: str) -> str | None:
    node = chance.choice(run.active())
    if (found := _one(chance, run.cluster.trainers(node))) is None:
        return None
    _signal([found[1]], number)
    return f"{what} the trainer of rank {found[0]} on {node}"


def kill_trainer(run: Round, chance: random.Random) -> str | None:
    return _trainer(run, chance, signal.SIGKILL, "SIGKILL to")


def terminate_trainer(run: Round, chance: random.Random) -> str | None:
    return _trainer(run, chance, signal.SIGTERM, "SIGTERM to")


def exception(run: Round, chance: random.Random) -> str | None:
    return _trainer(run, chance, signal.SIGUSR1, "an exception in")


def kill_supervisor(run: Round, chance: random.Random) -> str | None:
    node = chance.choice(run.active())
    if (found := _one(chance, run.cluster.workers(node))) is None:
        return None
    _signal([found[1]], signal.SIGKILL)
    return f"SIGKILL to the process torchrun knows of rank {found[0]} on {node}"


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
    seconds = chance.choice((0.3, 1.0, 5.0))  # the last is above the lease: its supervisors must end its trainers
    pid = run.cluster.agents[node].process.pid
    _signal([pid], signal.SIGSTOP)
    run.later(seconds, lambda: _signal([pid], signal.SIGCONT))
    return f"SIGSTOP for {seconds} s to the agent of {node} alone"


def leave(run: Round, chance: random.Random) -> str | None:
    if (node := run.expendable(chance)) is None:
        return None
    _signal([run.cluster.agents[node].process.pid], signal.SIGTERM)
    run.relaunch_later(node, chance)
    return f"SIGTERM to the agent of {node}"


# -- the log -----------------------------------------------------------------------------------------------------------


def database_away(run: Round, chance: random.Random) -> str | None:
    if (server := run.server) is None or not (server.data / "postmaster.pid").exists():
        return None
    seconds = chance.choice((0.5, 2.0, 6.0))
    how = chance.choice(("stopped", "killed"))
    server.kill() if how == "killed" else server.stop("immediate")
    run.later(seconds, server.start)
    return f"the database is {how}, and back in {seconds} s"


def _lock(run: Round) -> Callable[[], None] | None:
    """Take the log's write lock. Returns what gives it back; None when others had it for long."""
    if run.cluster.log_url is None:
        file = sqlite3.connect(run.cluster.event_log, timeout=0.5, isolation_level=None)
        try:
            file.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            file.close()
            return None
        return file.close
    engine = create_engine(run.cluster.log_url)
    try:
        connection = engine.connect()
        connection.execute(text("SET LOCAL lock_timeout = '500ms'"))
        connection.execute(text("LOCK TABLE runs, events IN EXCLUSIVE MODE"))
    except SQLAlchemyError:
        engine.dispose()
        return None

    def unlock() -> None:
        with contextlib.suppress(SQLAlchemyError):  # the server was away meanwhile
            connection.close()
        engine.dispose()

    return unlock


def lock_log(run: Round, chance: random.Random) -> str | None:
    seconds = chance.choice((0.5, 2.0, 6.0))
    if (unlock := _lock(run)) is None:
        return None
    run.later(seconds, unlock)
    return f"the log is locked for {seconds} s"


def slow_log(run: Round, chance: random.Random) -> str | None:
    times = chance.randint(4, 10)

    def again(left: int) -> None:
        if left and (unlock := _lock(run)) is not None:
            run.later(0.4, unlock)
            run.later(0.5, lambda: again(left - 1))

    again(times)
    return f"the log is slow, {times} times 0.4 s"


# -- the network -------------------------------------------------------------------------------------------------------


def cut_off(run: Round, chance: random.Random) -> str | None:
    if (machines := run.machines) is None or (node := run.expendable(chance)) is None:
        return None
    seconds = chance.choice((0.5, 1.6, 3.0, 8.0))
    machines.cut_off(node)
    run.later(seconds, lambda: machines.reconnect(node))
    return f"{node} is cut off for {seconds} s"


def divide(run: Round, chance: random.Random) -> str | None:
    if run.machines is None:
        return None
    seconds = chance.choice((0.5, 1.6, 3.0, 8.0))
    run.machines.divide()
    run.later(seconds, run.machines.unite)
    return f"the two switches are apart for {seconds} s"


def slow_cable(run: Round, chance: random.Random) -> str | None:
    node, seconds = chance.choice(run.living()), chance.choice((2.0, 6.0))
    if (machines := run.machines) is None or not machines.slow(node):
        return None
    run.later(seconds, lambda: machines.quick(node))
    return f"the cable of {node} is slow for {seconds} s: what it receives queues up for half a second"


# -- checkpoints -------------------------------------------------------------------------------------------------------

VAULT = "lmr.integrations.gemini.vault"


def kill_vault(run: Round, chance: random.Random) -> str | None:
    node = chance.choice(run.living())
    pids = run.named(node, VAULT)
    _signal(pids, signal.SIGKILL)
    return f"SIGKILL to the vault of {node}" if pids else None


def flip_a_byte(run: Round, chance: random.Random) -> str | None:
    """One byte of a vault's memory is wrong, and a moment later its copies are needed."""
    node = chance.choice(run.living())
    for pid in run.named(node, VAULT):
        regions = [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if "memfd:lmr-vault" in str(fd.readlink())]
        if not regions:
            continue
        with chance.choice(sorted(regions)).open("r+b", buffering=0) as memory:
            _flip(memory, chance.randrange(max(memory.seek(0, 2), 1)))
        return f"a byte of {node}'s copies is flipped; {kill_trainer(run, chance) or 'nobody needs it'}"
    return None


def _flip(file: io.RawIOBase, at: int) -> None:
    file.seek(at)
    byte = file.read(1)
    file.seek(at)
    file.write(bytes([byte[0] ^ 0xFF]) if byte else b"")


def lose_all_memory(run: Round, chance: random.Random) -> str | None:
    """Every copy in memory is gone, and what one node has of the newest step on disk is damaged; then it is needed."""
    if not run.on_disk():
        return None
    node = chance.choice(run.active())
    copies = sorted((run.disk / run.cluster.run_id / node).glob("*.shards"))
    if not copies:
        return None
    how = chance.choice(("stays", "has a flipped byte", "is cut off", "is gone"))
    with contextlib.suppress(FileNotFoundError):  # replaced by a newer one just now
        match how:
            case "has a flipped byte":
                with copies[-1].open("r+b", buffering=0) as file:
                    _flip(file, chance.randrange(copies[-1].stat().st_size))
            case "is cut off":
                os.truncate(copies[-1], copies[-1].stat().st_size // 2)
            case "is gone":
                copies[-1].unlink()
            case _:
                pass
    for other in run.living():
        _signal(run.named(other, VAULT), signal.SIGKILL)
    return (
        f"all vaults get SIGKILL, {copies[-1].name} of {node} {how}; {kill_trainer(run, chance) or 'nobody needs them'}"
    )


FAULTS: dict[str, tuple[Fault, ...]] = {
    "process": (kill_trainer, terminate_trainer, exception, kill_supervisor, freeze_trainer, kill_warm_process),
    "agent": (kill_agent, kill_machine, kill_a_rank_and_a_machine, freeze_machine, freeze_agent, leave),
    "log": (database_away, lock_log, slow_log),
    "network": (cut_off, divide, slow_cable),
    "checkpoint": (kill_vault, flip_a_byte, lose_all_memory),
}
