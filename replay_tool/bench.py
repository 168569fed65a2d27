"""How fast a long log is verified and replayed, and in how much memory: `python -m lmr.replay_tool.bench`.

Each measurement runs in a process of its own on a SQLite log made once for its size: captures and replicas with a check
a step, and a crash and its recovery now and then, which is what long logs consist of.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lmr.engine import events as e
from lmr.engine.events import Event
from lmr.engine.offline import run_facts

QUICK_SIZES = (20_000,)
SIZES = (100_000, 1_000_000, 5_000_000)
NODES = 8
CRASH_EVERY_STEPS = 500
START_MS = 1_795_200_000_000


def run(quick: bool) -> list[dict[str, Any]]:
    """The measurements, one dict each: what, events, seconds, events_per_s, events_per_cpu_s,
    peak_memory_mib, memory_above_start_mib.

    Args:
        quick: one small log in some seconds, else 100 thousand, 1 and 5 million events in many minutes.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="lmr-bench-") as folder:
        for size in QUICK_SIZES if quick else SIZES:
            path = Path(folder) / f"{size}.db"
            make_log(path, size)
            found += [_in_own_process(what, path) for what in WORK]
            path.unlink()
    return found


def make_log(path: Path, size: int) -> None:
    """A SQLite log of about `size` records."""
    from lmr.replay_tool.keeping import keep_records

    keep_records((record for _, record in run_facts(long_run(size))), str(path))


def long_run(size: int) -> Iterator[Event]:
    """The facts of a run, about `size` of them; every 500 steps a worker crashes and training resumes."""
    told, at_ms, generation, step = 0, START_MS, 0, 0
    nodes = [f"node-{number}" for number in range(NODES)]

    def say(data: e.Data, source: str, after_ms: int) -> Event:
        nonlocal told, at_ms
        told, at_ms = told + 1, at_ms + after_ms
        return Event.of(data, at_ms=at_ms, source=source)

    shape: Any = {
        "min_nodes": NODES,
        "max_nodes": NODES,
        "local_world_size": 2,
        "detection": True,
        "checkpointing": True,
    }
    yield say(e.RunOpened(run_id="bench", **shape, policy={"max_recoveries": 1_000_000}), "decider", 0)
    for node in nodes:
        yield say(e.NodeJoined(node=node, incarnation=node, address=node), node, 1)
    for node in nodes:
        yield say(e.GenerationStarted(generation=0, node=node), node, 10)
    while told < size:
        step += 1
        for slot, node in enumerate(nodes):
            digest, holder = f"{generation}-{step}-{slot}", nodes[(slot + 1) % NODES]
            captured: Any = {"generation": generation, "step": step, "slot": slot, "digest": digest}
            yield say(e.CheckpointCaptured(**captured, node=node, bytes=1 << 30), node, 20)
            yield say(e.CheckpointReplicated(**captured, holder=holder), holder, 5)
        peers = tuple(range(2 * NODES))
        checked: Any = {"generation": generation, "step": step, "recipe": "hidden"}
        yield say(e.ReplayChecked(**checked, verdict="clean", ranks=(), peers=peers), nodes[0], 50)
        if step % CRASH_EVERY_STEPS == 0:
            # Crashes wander over the nodes and lie an hour apart, so that each restarts in place.
            node = nodes[step // CRASH_EVERY_STEPS % NODES]
            error = e.ExitError(kind="signal", type="signal 9", fingerprint=f"crash-{step}")
            rank = 2 * nodes.index(node)
            exited: Any = {
                "generation": generation,
                "node": node,
                "rank": rank,
                "signal": 9,
                "step": step,
                "error": error,
            }
            yield say(e.WorkerExited(**exited), node, 3_600_000)
            at_ms += 1_000
            generation += 1
            for name in nodes:
                yield say(e.GenerationStarted(generation=generation, node=name), name, 10)
            yield say(e.TrainingResumed(generation=generation, step=step + 1), nodes[0], 500)


def _in_own_process(what: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "lmr.replay_tool.bench", what, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _raw(path: Path) -> int:
    """What the driver and SHA-256 alone cost: the floor."""
    import hashlib
    import sqlite3

    number = 0
    with sqlite3.connect(path) as connection:
        for prev_hash, body in connection.execute("select prev_hash, body from events order by seq"):
            hashlib.sha256(b"lmr-event-1\0" + bytes.fromhex(prev_hash) + body).digest()
            number += 1
    return number


def _verify(path: Path) -> int:
    from lmr.replay_tool.source import open_source
    from lmr.replay_tool.verbs.verify import verify

    found = verify(open_source(str(path)))
    assert found.ok, found.faults[:1]
    return found.records


def _whatif(path: Path) -> int:
    from lmr.engine.policy import RecoveryPolicy
    from lmr.replay_tool.source import open_source
    from lmr.replay_tool.verbs.whatif import whatif

    log = open_source(str(path))
    found = whatif(log, policy=RecoveryPolicy(max_recoveries=1_000_000))
    assert found.change is None, found.change
    return log.length or 0


def _state(path: Path) -> int:
    from lmr.replay_tool.source import open_source
    from lmr.replay_tool.verbs.state import state

    return state(open_source(str(path))).seq


def _views_of_incidents(path: Path) -> int:
    from lmr.store.schema import AUDIT_VIEWS

    return _views(path, tuple(view for view in AUDIT_VIEWS if view not in _WHOLE_VIEWS))


def _views_of_all(path: Path) -> int:
    return _views(path, _WHOLE_VIEWS)


_WHOLE_VIEWS = ("audit_events", "audit_checkpoints")
"""They have a row for nearly every record; the others only for the rare ones."""


def _views(path: Path, views: tuple[str, ...]) -> int:
    """Every row of the views, one at a time; the events of the log."""
    import sqlite3

    with sqlite3.connect(path) as connection:
        for view in views:
            for _ in connection.execute(f"SELECT * FROM {view}"):  # noqa: S608 - a constant
                pass
        return int(connection.execute("SELECT sum(head_seq) FROM runs").fetchone()[0])


WORK: dict[str, Callable[[Path], int]] = {
    "raw_read_and_hash": _raw,
    "verify": _verify,
    "state": _state,
    "whatif": _whatif,
    "views_of_incidents": _views_of_incidents,
    "views_of_all": _views_of_all,
}
"""What is measured, each in a process of its own."""


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(what: str, path: Path) -> dict[str, Any]:
    """One measurement in this process."""

    before_mib, started, cpu_started = _peak_mib(), time.perf_counter(), time.process_time()
    events = WORK[what](path)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    return {
        "what": f"replay.{what}",
        "events": events,
        "seconds": round(seconds, 2),
        "events_per_s": round(events / seconds),
        "events_per_cpu_s": round(events / cpu_seconds),
        "peak_memory_mib": round(_peak_mib()),
        "memory_above_start_mib": round(_peak_mib() - before_mib, 1),
    }


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
    else:
        for line in run("--quick" in sys.argv):
            print(json.dumps(line))
