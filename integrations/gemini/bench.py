"""What capture, restore and replication cost, against plain copies, files and sockets of the same bytes.

Both sides of a row are measured in turn, within the same run: step by step for captures, repetition by repetition for
the others. A ratio is the geometric mean of the pairs' ratios, with its 95 % interval. Processor seconds stand beside
wall time, since a copy that is hidden behind computation is not free. Nothing of this is part of a test.
"""

from __future__ import annotations

import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lmr.integrations.gemini.bench_node import BenchNode
from lmr.integrations.gemini.bench_trainer import MB
from lmr.integrations.gemini.vault.memory import available_bytes

QUICK_SIZES, ALL_SIZES = (40, 400), (40, 400, 2000)
OTHER = "lm-resiliency==0.2.0"
BUFFERS = 3
COPIES_NEEDED = 10
"""How often the state must fit into memory: live, gradients, buffers, a plain copy, files."""
# Two-sided 95 % points of Student's t, by degrees of freedom.
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 15: 2.13, 20: 2.09}

Row = dict[str, object]


def run(*, quick: bool) -> list[Row]:
    """One row for each comparison and size.

    Returns:
        what, size_mb, ours_ms and theirs_ms (medians), ratio (ours to theirs) with low and high; the same of processor
        time, where it was measured: of the loop's thread for a capture, of the process for a restore, of all processes
        for a replica and a step; pairs. What a vault takes has ours_mb and theirs_mb instead. A size that does not fit
        into memory has one row that says so.
    """
    rows: list[Row] = []
    for mb in QUICK_SIZES if quick else ALL_SIZES:
        if COPIES_NEEDED * mb * MB > available_bytes():
            rows.append(_row(f"left out: {COPIES_NEEDED} times its size is not available", mb, [], []))
            continue
        for part in (_stall, _restore, _replica, _pace):
            rows += part(mb, quick=quick)
    return rows


def interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of the pairs' ratios, and its 95 % interval."""
    logs = [math.log(one / other) for one, other in zip(ours, theirs, strict=True)]
    middle = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(middle), 0.0, math.inf
    freedom = len(logs) - 1
    t = next((value for most, value in _T.items() if freedom <= most), 1.98)
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def _row(
    what: str,
    mb: int,
    ours: list[float],
    theirs: list[float],
    ours_cpu: Sequence[float] = (),
    theirs_cpu: Sequence[float] = (),
) -> Row:
    ratio, low, high = _rounded(ours, theirs)
    cpu_ratio, cpu_low, cpu_high = _rounded(ours_cpu, theirs_cpu)
    return {
        "what": what,
        "size_mb": mb,
        "ours_ms": _ms(ours),
        "theirs_ms": _ms(theirs),
        "ratio": ratio,
        "low": low,
        "high": high,
        "ours_cpu_ms": _ms(ours_cpu),
        "theirs_cpu_ms": _ms(theirs_cpu),
        "cpu_ratio": cpu_ratio,
        "cpu_low": cpu_low,
        "cpu_high": cpu_high,
        "pairs": len(ours),
    }


def _rounded(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Ratio and interval; none where there is nothing, or less than the clock can tell."""
    if not ours or min(*ours, *theirs) <= 0:
        return None, None, None
    ratio, low, high = interval(ours, theirs)
    return round(ratio, 3), round(low, 3), round(high, 3)


def _pair(what: str, mb: int, ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> Row:
    return _row(what, mb, ours["wall_s"], theirs["wall_s"], ours["cpu_s"], theirs["cpu_s"])


def _ms(seconds: Sequence[float]) -> float | None:
    return round(1000 * statistics.median(seconds), 2) if seconds else None


def _policy(copy_mode: str) -> dict[str, Any]:
    checkpoint = {"copy_mode": copy_mode, "buffers": BUFFERS}
    return {"interval": 1, "enable_detection": False, "checkpoint": checkpoint}


def _trainer(job: str, environ: dict[str, str], **settings: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "lmr.integrations.gemini.bench_trainer", job, json.dumps(settings)],
        env={**os.environ, **environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    (result,) = (line for line in done.stdout.splitlines() if line.startswith(b"{"))
    return json.loads(result)  # type: ignore[no-any-return]


def _stall(mb: int, *, quick: bool) -> Iterator[Row]:
    """What a step waits for its capture, against a plain copy of the same tensors."""
    settings = {"mb": mb, "steps": 12 if quick else 24, "buffers": BUFFERS}
    for mode in ("foreground", "background"):
        with BenchNode("one", _policy(mode)) as node:
            node.enter(0)
            found = _trainer("stall", node.trainer_environ(0, 0), protected=True, **settings)
            taken_mb, bound_mb = (count / MB for count in (node.taken_bytes(), node.hear("memory")["bound_bytes"]))
        yield _pair(f"capture, {mode}: stall of a step / memcpy", mb, found["ours"], found["plain"])
    what = f"memory of the vault, {BUFFERS} buffers / its bound, replicas included"
    ratio = round(taken_mb / bound_mb, 3)
    yield {"what": what, "size_mb": mb, "ours_mb": round(taken_mb), "theirs_mb": round(bound_mb), "ratio": ratio}


def _restore(mb: int, *, quick: bool) -> Iterator[Row]:
    """From the vault's memory into live objects, against a plain copy and against `torch.load`."""
    with BenchNode("one", _policy("foreground")) as node, tempfile.TemporaryDirectory() as folder:
        _captured(node, mb)
        verified_s, times = [], 5 if quick else 10
        for generation in range(1, times + 1):
            began = time.perf_counter()
            node.enter(generation, 6)
            node.hear("restorable", step=6)
            verified_s.append(time.perf_counter() - began)
        node.tell("load", generation=times)
        settings = {"mb": mb, "step": 6, "folder": folder, "steps": times}
        found = _trainer("restore", node.trainer_environ(times, 6), protected=True, **settings)
    yield _pair("restore: load / memcpy", mb, found["ours"], found["plain"])
    yield _pair("restore: load / torch.load", mb, found["ours"], found["loaded"])
    both = [sum(pair) for pair in zip(verified_s, found["ours"]["wall_s"], strict=True)]
    yield _row("restore: verify and load / torch.load", mb, both, found["loaded"]["wall_s"])


def _captured(node: BenchNode, mb: int) -> None:
    """Have the vault hold, and publish, step 6 of a training of this size."""
    node.enter(0)
    node.tell("pin", step=6)
    _trainer("stall", node.trainer_environ(0, 0), protected=True, mb=mb, steps=1, buffers=1)
    node.hear("fact", type="checkpoint_captured")


def _replica(mb: int, *, quick: bool) -> Iterator[Row]:
    """From one vault's memory to another's, verified there, against the same bytes over a bare loopback socket."""
    ours: dict[str, list[float]] = {"wall_s": [], "cpu_s": []}
    theirs: dict[str, list[float]] = {"wall_s": [], "cpu_s": []}
    with BenchNode("one", _policy("foreground")) as holder:
        _captured(holder, mb)
        for _ in range(5 if quick else 8):
            with BenchNode("two", _policy("foreground")) as node:
                node.wait_idle()
                began, cpu_s = time.perf_counter(), holder.cpu_s() + node.cpu_s()
                node.enter(1, 6, holder)
                node.hear("restorable", step=6)
                ours["wall_s"].append(time.perf_counter() - began)
                ours["cpu_s"].append(holder.cpu_s() + node.cpu_s() - cpu_s)
            for key, value in zip(theirs, _bare_socket(mb * MB), strict=True):
                theirs[key].append(value)
    yield _pair("replica: fetch and verify / bare loopback socket", mb, ours, theirs)


_SENDS = """
import os, socket, sys, time
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
b = memoryview(bytearray(b'1') * int(sys.argv[2]))
s.recv(1)
began = time.process_time()
s.sendall(b)
os.write(1, str(time.process_time() - began).encode())
"""


def _bare_socket(nbytes: int) -> tuple[float, float]:
    """Wall and processor seconds for so many bytes from one process's memory to another's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sender = subprocess.Popen([sys.executable, "-c", _SENDS, str(port), str(nbytes)], stdout=subprocess.PIPE)
        sock, _ = server.accept()
        began, cpu_s = time.perf_counter(), time.process_time()
        memory, at = memoryview(bytearray(nbytes)), 0
        sock.send(b"g")
        while at < nbytes:
            got = sock.recv_into(memory[at:])
            if not got:
                raise ConnectionResetError("the sender of the bare socket ended early")
            at += got
        took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
        sock.close()
        return took_s, cpu_s + float(sender.communicate()[0])


def _pace(mb: int, *, quick: bool) -> Iterator[Row]:
    """Seconds a step with each way to save at every step, against none; all of them once in each repetition."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        other = _installed(folder)
        for _ in range(3 if quick else 5):
            for kind, measure in _paces(mb, {40: 30, 400: 8, 2000: 5}[mb], other).items():
                found.setdefault(kind, []).append(measure())
    if other is None:
        yield _row(f"left out: {OTHER} could not be installed", mb, [], [])
    alone = found.pop("none")
    for kind, runs in found.items():
        yield _pair(f"step with {kind} / step without", mb, _clocks(runs), _clocks(alone))


def _clocks(runs: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {"wall_s": [one["step_s"] for one in runs], "cpu_s": [one["cpu_s"] for one in runs]}


def _paces(mb: int, steps: int, other: str | None) -> dict[str, Callable[[], dict[str, Any]]]:
    def plain(kind: str, **environ: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return _trainer("pace", environ, mb=mb, steps=steps, kind=kind, folder=folder)

    def ours(mode: str) -> dict[str, Any]:
        with BenchNode("one", _policy(mode)) as node:
            node.enter(0)
            before = node.cpu_s()
            found = _trainer(
                "pace", node.trainer_environ(0, 0), protected=True, mb=mb, steps=steps, kind="none", folder=""
            )
            found["cpu_s"] += (node.cpu_s() - before) / (steps + 6)
        return found

    found = {
        "none": lambda: plain("none"),
        "capture (foreground) at each": lambda: ours("foreground"),
        "capture (auto) at each": lambda: ours("auto"),
        "torch.save at each": lambda: plain("torch.save"),
        "DCP async_save at each": lambda: plain("async_save"),
    }
    if other is not None:
        found[f"{OTHER} at each 5th"] = lambda: plain("lm-resiliency", PYTHONPATH=other)
    return found


def _installed(folder: str) -> str | None:
    """The other package in a folder of its own: beside ours, its torchrun backend of the same name would clash."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, OTHER]
    done = subprocess.run(pip, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return folder if done.returncode == 0 else None
