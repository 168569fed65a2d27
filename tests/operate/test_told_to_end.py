"""A verb that is told to end takes what it started with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmr.integrations.operate.main import main as lmr

COMMAND = (sys.executable, "-m", "lmr.integrations.operate.main")


def _started_for(folder: Path) -> list[int]:
    """Processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if os.fsencode(folder) in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.torchrun
def test_a_demo_that_is_terminated_leaves_no_agent_and_no_worker(tmp_path):
    folder = tmp_path / "demo"
    demo = subprocess.Popen([*COMMAND, "demo", "--folder", str(folder)], stdout=subprocess.PIPE, text=True)
    own = demo.pid
    until = time.monotonic() + 120
    while not any(pid != own for pid in _started_for(folder)):
        assert demo.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    demo.terminate()
    assert demo.wait(60) == 128 + signal.SIGTERM
    until = time.monotonic() + 30  # what was killed may still be dying
    while left := _started_for(folder):
        assert time.monotonic() < until, left
        time.sleep(0.05)


def test_the_handler_of_whoever_calls_is_given_back(capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert lmr(["db", "check", "/nowhere/events.db"]) == 2
    assert signal.getsignal(signal.SIGTERM) is before
