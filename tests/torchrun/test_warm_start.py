"""A warm trainer finds what a cold one finds; only torch is there already."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lmr.integrations.torchrun.warm_request import LOADING_S

pytestmark = pytest.mark.torchrun

SCRIPT = "tests/torchrun/scripts/what_a_script_sees.py"
MODULE = "tests.torchrun.scripts.what_a_script_sees"


def restart_once(job, name, command, root, monkeypatch, **environ):
    """Run until the second life has written; what it saw, for each rank."""
    monkeypatch.chdir(root)
    made = job(name=name, nodes="1:1", environ=environ, options=("--max-restarts=0",), command=command)
    made.command = [*command, str(made.folder)]
    made.start("node-1")
    assert made.wait_exit("node-1", 90) == 0, made.standing()
    assert "hello from rank 1 of generation 1" in made.agents["node-1"].text()
    seen = [json.loads((made.folder / f"sees.1.{rank}.json").read_text()) for rank in (0, 1)]
    text = json.dumps(seen).replace(str(made.folder), "FOLDER")
    return json.loads(text)


@pytest.mark.parametrize(
    "command",
    [pytest.param([SCRIPT], marks=pytest.mark.long, id="script"), pytest.param(["--module", MODULE], id="module")],
)
def test_a_warm_start_is_as_good_as_a_cold_one(job, command, pytestconfig, monkeypatch):
    """Arguments, paths, folder, environment, stdio, signals and `__main__` are equal; random numbers differ by rank."""
    cold = restart_once(job, "cold", command, pytestconfig.rootpath, monkeypatch, LM_RESILIENCY_WARM_START="0")
    warm = restart_once(job, "warm", command, pytestconfig.rootpath, monkeypatch)
    assert [told["loaded"] for told in cold] == [False, False]
    assert [told["loaded"] for told in warm] == [True, True]
    for one, other in zip(warm, cold, strict=True):
        for what in one["sees"]:
            assert one["sees"][what] == other["sees"][what], what
    assert warm[0]["random"] != warm[1]["random"]
    assert set(warm[0]["ours"]) <= preloaded(), "imported anew in every rank: add it to warm.PRELOADED"


def preloaded():
    """Modules of ours that the warm process has before it serves."""
    code = (
        "import importlib, sys; from lmr.integrations.torchrun.warm import PRELOADED\n"
        "for name in PRELOADED: importlib.import_module(name)\n"
        "print(*(name for name in sys.modules if name.split('.')[0] == 'lmr'))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_a_lost_warm_process_costs_the_next_start_only_time(job, pytestconfig, monkeypatch):
    """Its trainers die with it; the restart waits for a new one that is only just loading, though not for ever."""
    loop = job("--steps", "200", nodes="1:1")
    loop.start("node-1")
    loop.wait_for(lambda: loop.is_warm("node-1"), "the warm process to serve")
    loop.train_until(5)
    os.kill(max(loop.trainers("node-1").items())[1], signal.SIGKILL)
    loop.wait_resumed(1)
    (warm,) = [pid for pid in _children(loop.agents["node-1"].process.pid) if b"torchrun.warm" in _cmdline(pid)]
    os.kill(warm, signal.SIGKILL)
    loop.wait_resumed(2)
    trainers = set(loop.trainers("node-1").values())
    warm_start = all(b"lmr.integrations.torchrun.warm" in _cmdline(pid) for pid in trainers)
    times = [r.recorded_at_ms for r in loop.records() if r.event.type in ("plan_committed", "generation_started")]
    assert warm_start or times[-1] - times[-2] >= 1000 * LOADING_S, "cold"
    assert loop.wait_exit("node-1") == 0, loop.standing()


def _children(pid):
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def _cmdline(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.long
def test_nobody_waits_for_ever_for_a_warm_process_that_is_stopped(job):
    """A trainer's end is noticed without it, the next ones start cold, and when it goes on it starts nothing late."""
    loop = job("--steps", "400", nodes="1:1")
    loop.start("node-1")
    loop.wait_for(lambda: loop.is_warm("node-1"), "the warm process to serve")
    loop.train_until(5)
    os.kill(max(loop.trainers("node-1").items())[1], signal.SIGKILL)
    loop.wait_resumed(1)
    agent = loop.agents["node-1"].process.pid
    (warm,) = [pid for pid in _children(agent) if b"torchrun.warm" in _cmdline(pid)]
    before = loop.trainers("node-1")
    os.kill(warm, signal.SIGSTOP)
    os.kill(before[1], signal.SIGKILL)
    loop.wait_resumed(2, 120)
    text = loop.agents["node-1"].text()
    assert "does not say how rank 1 ended" in text
    assert text.count("the warm process does not answer") == 2
    cold = loop.trainers("node-1")
    assert not any(b"torchrun.warm" in _cmdline(pid) for pid in cold.values())
    os.kill(warm, signal.SIGCONT)
    loop.wait_for(lambda: len(_children(warm)) == 2, "the warm process to have forks ready")
    assert loop.trainers("node-1") == cold
    assert loop.wait_exit("node-1", 120) == 0, loop.standing()


@pytest.mark.long
def test_a_job_that_is_cancelled_leaves_its_scripts_their_last_words(job):
    """As `scancel` does: SIGTERM to every process of the node at once, the warm one and forks that stand ready too."""
    loop = job(nodes="1:1", command=[str(Path(__file__).parent / "scripts" / "says_goodbye.py")])
    loop.command = [*loop.command, str(loop.folder)]
    loop.start("node-1")
    loop.wait_for(lambda: len(list(loop.folder.glob("ready.*"))) == 2, "warm trainers")
    (warm,) = [pid for pid in _children(loop.agents["node-1"].process.pid) if b"torchrun.warm" in _cmdline(pid)]
    assert {warm} == {_parent(pid) for pid in loop.trainers("node-1").values()}
    for pid in loop.processes("node-1"):
        os.kill(pid, signal.SIGTERM)
    loop.wait_exit("node-1")
    assert len(list(loop.folder.glob("goodbye.*"))) == 2, loop.standing()


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
