"""A machine without processes or descriptors to spare: trainers start cold, and the warm process serves on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from warm_double import Supervisor, children, has_ended, until

from lmr.integrations.torchrun import local_socket

SERVES = """
import os, resource, sys
from lmr.integrations.torchrun.warm_forks import WarmForks
name, ready, without, limit = sys.argv[1:]
fork = os.fork

def fork_or_not():
    if os.path.exists(without):  # a stand-in: root cannot be denied processes
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork()

os.fork = fork_or_not
forks = WarmForks(name, int(ready))
if int(limit):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))
forks.serve()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def serve(tmp_path):
    """Starts the part of the warm process that forks: without torch, with what it is not to have."""
    started = []

    def start(ready, limit=0):
        name = f"lmr-want-test-{os.getpid()}-{time.monotonic_ns()}"
        command = [sys.executable, "-c", SERVES, name, str(ready), str(tmp_path / "without"), str(limit)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        process.name = name
        started.append(process)
        until(lambda: f"@{name}" in Path("/proc/net/unix").read_text(), "it to serve")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def served(warm, folder):
    """A supervisor with a trainer, or nothing where the warm process has none."""
    one = Supervisor(warm, folder)
    answer = local_socket.receive(one.socket)
    if answer is None:
        one.close()
        return None
    assert one.says(b"ready")
    return one


def test_without_processes_a_supervisor_is_turned_away_at_once(serve, tmp_path):
    (tmp_path / "without").touch()
    warm = serve(1)
    assert b"no fork for a warm start" in warm.stderr.readline(), "it has tried to have one ready"
    assert served(warm, tmp_path) is None
    assert served(warm, tmp_path) is None
    (tmp_path / "without").unlink()
    until(lambda: len(children(warm.pid)) == 1, "a fork")
    served(warm, tmp_path).close()
    warm.kill()
    assert b"no fork" not in warm.stderr.read(), "said once"


def test_without_descriptors_it_serves_as_many_as_it_can(serve, tmp_path):
    warm = serve(2, limit=16)
    trainers = []
    while (one := served(warm, tmp_path)) is not None:
        trainers.append(one)
        assert len(trainers) < 16
    assert trainers
    for _ in range(20):
        assert served(warm, tmp_path) is None
    for one in trainers:
        one.close()
    until(lambda: trainers.append(served(warm, tmp_path)) or trainers[-1], "descriptors to be given back")
    trainers[-1].close()


def test_an_idle_warm_process_without_descriptors_does_not_spin(serve, tmp_path):
    warm = serve(8, limit=12)
    until(lambda: len(children(warm.pid)) >= 1, "a fork")
    before = seconds_used(warm.pid)
    time.sleep(2)
    assert seconds_used(warm.pid) - before < 0.5
    assert warm.poll() is None


def seconds_used(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_forks_that_stand_ready_end_with_the_warm_process(serve):
    warm = serve(3)
    until(lambda: len(children(warm.pid)) == 3, "the forks to stand ready")
    forks = children(warm.pid)
    warm.send_signal(signal.SIGKILL)
    warm.wait()
    for pid in forks:
        until(lambda pid=pid: has_ended(pid), f"{pid} to end")
