"""A measurement that is broken off leaves nothing behind: no process, no network namespace."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmr.integrations.faults.network import Namespace
from lmr.integrations.operate.cluster import MARK

HERE = Path(__file__).parent
ALONE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cases import CUT
from measuring import hurt
hurt(CUT.cases[0], CUT, Path(sys.argv[2]))
"""

pytestmark = [
    pytest.mark.torchrun,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are for root"),
]


def processes(folder: Path) -> list[int]:
    """Whatever runs for the measurement: agents, trainers, `lmr inject`."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_nothing_is_left_of_a_measurement_that_was_broken_off(tmp_path, number):
    own = tmp_path / "network_partition-alone"
    marks = own / "campaign.toml.marks"
    measurement = subprocess.Popen(
        [sys.executable, "-c", ALONE, str(HERE), str(tmp_path)],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    namespace = Path("/run/netns", Namespace.of(marks, "node-2").name)
    try:
        until = time.monotonic() + 240
        while not list(marks.glob("fault-*.json")):
            assert measurement.poll() is None, "it ended before its fault struck"
            assert time.monotonic() < until, "no fault struck"
            time.sleep(0.05)
        assert namespace.exists()
        assert processes(own)
        measurement.send_signal(number)
        assert measurement.wait(60) != 0
        assert processes(own) == []
        assert not namespace.exists()
    finally:
        measurement.kill()
        measurement.wait()
        for pid in processes(own):
            os.kill(pid, signal.SIGKILL)
