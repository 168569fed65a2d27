"""The warm process: forks that stand ready, and what it survives."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmr.integrations.torchrun import local_socket

RANKS = 2
LISTS = """
import os
found = []
for descriptor in os.listdir("/proc/self/fd"):
    try:
        found.append(os.readlink(f"/proc/self/fd/{descriptor}").partition(":")[0])
    except OSError:
        continue
print([kind for kind in found if kind != "/memfd"])
"""
OWN = b"['pipe', 'pipe', 'pipe', 'socket']"
"""Standard streams, and where SCOUT may ask this trainer for evidence."""
LIVES = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture(scope="module")
def warm():
    """A warm process that serves, with all its forks ready."""
    name = f"lmr-warm-test-{os.getpid()}"
    command = [sys.executable, "-m", "lmr.integrations.torchrun.warm", name, str(os.getpid()), str(RANKS)]
    with subprocess.Popen(command) as process:
        process.name = name
        until(lambda: len(children(process.pid)) == RANKS, "the forks to stand ready")
        yield process
        assert process.poll() is None, "it ended"
        process.kill()


def until(condition, what, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


def children(pid):
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_gone(pid):
    return not Path(f"/proc/{pid}").exists()


class Supervisor:
    """Asks as a supervisor does, for a script that prints `ready` and lives until its input ends."""

    def __init__(self, warm, folder, body=LIVES):
        script = folder / f"script{len(list(folder.iterdir()))}.py"
        script.write_text(body)
        inputs, self.input = os.pipe()
        self.output, outputs = os.pipe()
        page = os.memfd_create("page")
        os.ftruncate(page, 16384)
        given = [inputs, outputs, outputs, page]
        self.socket = local_socket.connect(warm.name)
        job = {
            "argv": [sys.executable, str(script)],
            "environ": {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LMR_AGENT_SOCKET": "nobody"},
            "folder": str(folder),
            "path": sys.path,
            "supervisor": os.getpid(),
        }
        local_socket.send(self.socket, job, given)
        for descriptor in {*given}:
            os.close(descriptor)

    def pid(self):
        return local_socket.receive(self.socket)[0]["pid"]

    def says(self, word):
        said = b""
        while word not in said and (more := os.read(self.output, 1000)):
            said += more
        return word in said

    def close(self):
        for descriptor in (self.input, self.output):
            os.close(descriptor)
        self.socket.close()


def test_a_trainer_is_a_fork_that_stood_ready_and_another_takes_its_place(warm, tmp_path):
    ready = children(warm.pid)
    one = Supervisor(warm, tmp_path)
    trainer = one.pid()
    assert trainer in ready
    assert one.says(b"ready")
    until(lambda: len(children(warm.pid)) == RANKS + 1, "another fork")
    os.close(one.input)
    assert local_socket.receive(one.socket)[0] == {"status": 0}
    one.socket.close()
    assert children(warm.pid) >= ready - {trainer}


def test_more_trainers_than_forks_are_forked_at_once(warm, tmp_path):
    until(lambda: len(children(warm.pid)) == RANKS, "the forks to stand ready")
    several = [Supervisor(warm, tmp_path) for _ in range(RANKS + 2)]
    pids = [one.pid() for one in several]
    assert len(set(pids)) == len(pids)
    assert all(one.says(b"ready") for one in several)
    for one in several:
        one.close()
    for pid in pids:
        until(lambda pid=pid: is_gone(pid), f"trainer {pid} to end with its supervisor")


def test_a_trainer_has_nothing_of_the_warm_process(warm, tmp_path):
    """Neither its sockets nor what other trainers were given, whether it stood ready or was forked for its job."""
    until(lambda: len(children(warm.pid)) == RANKS, "the forks to stand ready")
    holding = [Supervisor(warm, tmp_path) for _ in range(RANKS)]
    assert all(one.says(b"ready") for one in holding)
    forked = Supervisor(warm, tmp_path, LISTS)
    assert forked.says(OWN)
    until(lambda: len(children(warm.pid)) == 2 * RANKS, "other forks")
    ready = Supervisor(warm, tmp_path, LISTS)
    assert ready.says(OWN)
    for one in (*holding, forked, ready):
        one.close()


def test_a_fork_that_was_killed_while_it_stood_ready_is_not_given_a_job(warm, tmp_path):
    until(lambda: len(children(warm.pid)) == RANKS, "the forks to stand ready")
    before = children(warm.pid)
    warm.send_signal(signal.SIGSTOP)  # it hears of the deaths and of the job at once
    for pid in before:
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: state(pid) == "Z", f"{pid} to be dead")
    one = Supervisor(warm, tmp_path)
    warm.send_signal(signal.SIGCONT)
    assert one.pid() not in before
    assert one.says(b"ready")
    one.close()
    until(lambda: len(children(warm.pid)) == RANKS and not children(warm.pid) & before, "other forks")


def test_a_trainer_and_its_supervisor_may_end_at_the_same_moment(warm, tmp_path):
    """As when an agent kills all its workers. Both pieces of news are there when the warm process looks."""
    several = [Supervisor(warm, tmp_path) for _ in range(3)]
    pids = [one.pid() for one in several]
    assert all(one.says(b"ready") for one in several)
    warm.send_signal(signal.SIGSTOP)
    for one, pid in zip(several, pids, strict=True):
        os.kill(pid, signal.SIGKILL)
        one.close()
    warm.send_signal(signal.SIGCONT)
    for pid in pids:
        until(lambda pid=pid: is_gone(pid), f"trainer {pid} to be reaped")
    last = Supervisor(warm, tmp_path)
    last.pid()
    assert last.says(b"ready")
    last.close()


@pytest.mark.parametrize("message", [{}, {"argv": ["python"]}, {"argv": ["python", "x"], "more": 1}])
def test_what_is_no_job_is_refused(warm, message, tmp_path):
    with local_socket.connect(warm.name) as sock:
        local_socket.send(sock, message)
        assert local_socket.receive(sock) is None
    one = Supervisor(warm, tmp_path, "print('ready')")
    one.pid()
    assert one.says(b"ready")
    assert local_socket.receive(one.socket)[0] == {"status": 0}
    one.close()
