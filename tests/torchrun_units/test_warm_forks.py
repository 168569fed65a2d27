"""The warm process: forks that stand ready, and what it survives."""

import os
import signal

import pytest
from warm_double import Supervisor, children, is_gone, start_warm, state, until

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


@pytest.fixture(scope="module")
def warm():
    """A warm process that serves, with all its forks ready."""
    with start_warm(RANKS) as process:
        yield process
        assert process.poll() is None, "it ended"
        process.kill()


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
