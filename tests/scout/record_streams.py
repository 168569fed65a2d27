"""Records pulse streams of real trainings under load: `python tests/scout/record_streams.py [NUMBER ...]`.

Each recording is one torchrun training of four or eight ranks on this machine, while other processes take processor
and disk by turns. What is written to `recordings/` is what the run's SCOUT heard, and what it said of it.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lmr.integrations.operate.cluster import Cluster

HERE = Path(__file__).parent
RECORDINGS = HERE / "recordings"
COUNT = 10
SECONDS = 100
_BURN = "import time\nuntil = time.monotonic() + {s}\nwhile time.monotonic() < until: pass"
_WRITE = """\
import os, tempfile, time
until = time.monotonic() + {s}
with tempfile.TemporaryFile() as file:
    while time.monotonic() < until:
        file.seek(0); file.write(os.urandom(1 << 22)); file.flush(); os.fsync(file.fileno())
"""


def settings(number: int) -> tuple[int, list[str]]:
    """Nodes, and the script's arguments."""
    rnd = random.Random(f"recording {number}")
    nodes = 4 if number % 4 == 3 else 2
    width = rnd.choice((64, 256, 512))
    more = ["--width", str(width), "--layers", str(rnd.choice((2, 4, 8))), "--workers", str(number % 2)]
    return nodes, [*more, "--evaluate-every", str(rnd.choice((20, 40, 80))), "--save-every", str(rnd.choice((30, 60)))]


@contextlib.contextmanager
def load(number: int) -> Iterator[None]:
    """Bursts of other work, one process at a time, until the end."""
    rnd = random.Random(f"load {number}")
    bursts = "".join(
        f"subprocess.run([sys.executable, '-c', {rnd.choice((_BURN, _WRITE)).format(s=rnd.choice((1, 3, 8)))!r}])\n"
        f"time.sleep({rnd.choice((1, 4, 10))})\n"
        for _ in range(200)
    )
    made = subprocess.Popen([sys.executable, "-c", f"import subprocess, sys, time\n{bursts}"], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(made.pid, signal.SIGKILL)
        made.wait()


def record(number: int) -> Path:
    """Make one recording; returns its file."""
    nodes, arguments = settings(number)
    command = [str(HERE / "scripts" / "recorded_training.py"), "--seconds", str(SECONDS), *arguments]
    with tempfile.TemporaryDirectory(prefix="lmr-record-") as name, load(number):
        pulses = Path(name, "pulses.jsonl")
        environ = {"PYTHONPATH": str(HERE / "recorder"), "LMR_RECORD_PULSES": str(pulses)}
        with Cluster(Path(name, "run"), command, nodes=str(nodes), environ=environ) as cluster:
            for i in range(nodes):
                cluster.start(f"node-{i}")
                time.sleep(1)
            for i in range(nodes):
                if cluster.wait_exit(f"node-{i}", SECONDS + 300) != 0:
                    raise SystemExit(cluster.standing())
            said = sorted({record.event.type for record in cluster.records()})
            if "worker_exited" in said:
                raise SystemExit(f"recording {number} is of a training that failed\n{cluster.standing()}")
        about = {"number": number, "nodes": nodes, "arguments": arguments, "facts": said}
        RECORDINGS.mkdir(exist_ok=True)
        path = RECORDINGS / f"{number:02}.jsonl.xz"
        path.write_bytes(lzma.compress(f"{json.dumps(about)}\n{pulses.read_text()}".encode(), preset=9))
    return path


if __name__ == "__main__":
    for wanted in map(int, sys.argv[1:] or range(COUNT)):
        made = record(wanted)
        print(f"{made}: {made.stat().st_size} bytes", flush=True)
