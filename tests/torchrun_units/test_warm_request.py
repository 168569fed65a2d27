"""Asking for a warm trainer: no answer in time is a cold start, and a trainer's end does not go unheard."""

import os
import signal
import socket
import subprocess
import sys
import threading
import zipapp
from pathlib import Path

import pytest
from warm_double import has_ended, until

from lmr.integrations.torchrun import local_socket, warm_request
from lmr.integrations.torchrun.warm_request import WarmTrainer, understood


@pytest.fixture
def listener(monkeypatch):
    """Where a warm process would listen; it is up to the test to answer."""
    name = f"lmr-request-test-{os.getpid()}"
    monkeypatch.setenv(warm_request.SOCKET, name)
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-u", __file__])
    monkeypatch.setattr(warm_request, "ANSWER_S", 0.3)
    with local_socket.listen(name) as sock:
        yield sock


@pytest.fixture
def page():
    descriptor = os.memfd_create("page")
    yield descriptor
    os.close(descriptor)


def test_no_answer_is_a_cold_start_and_comes_too_late_afterwards(listener, page, capfd):
    assert warm_request.ask(page, []) is None
    asked, _ = listener.accept()
    assert local_socket.receive(asked)[0]["argv"] == sys.orig_argv
    with pytest.raises(BrokenPipeError):
        local_socket.send(asked, {"pid": os.getpid()})
    asked.close()
    assert "starts cold" in capfd.readouterr().err


def test_an_answer_that_comes_just_now_counts(listener, page, monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receive, calls = warm_request.local_message.receive, []

    def late(sock):
        calls.append(sock)
        if len(calls) == 1:
            local_socket.send(theirs, {"pid": 1})
            raise TimeoutError
        return receive(sock)

    monkeypatch.setattr(warm_request.local_message, "receive", late)
    assert warm_request._answer(ours) == ({"pid": 1}, [])
    ours.close()
    theirs.close()


def test_a_warm_process_that_ends_instead_of_answering_is_a_cold_start(listener, page):
    thread = threading.Thread(target=lambda: listener.accept()[0].close())
    thread.start()
    assert warm_request.ask(page, []) is None
    thread.join()


def test_what_no_message_can_carry_starts_cold(listener, page, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/a/path/that/is/no/text")])
    assert warm_request.ask(page, []) is None


def test_a_trainer_whose_end_nobody_tells_counts_as_killed(monkeypatch):
    """The warm process is stopped: its fork stays a zombie, and a run would wait for ever."""
    monkeypatch.setattr(warm_request, "ANSWER_S", 0.2)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    script = "sleep 60 & echo $!; exec sleep 60"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as process:
        child = int(process.stdout.readline())
        trainer = WarmTrainer(ours, process.pid)
        end = trainer.watched()[1]
        assert trainer.status([]) is None
        assert trainer.most_s(None) is None
        os.kill(process.pid, signal.SIGKILL)
        assert trainer.status([end]) is None
        assert 0 < trainer.most_s(None) <= 0.2
        until(lambda: trainer.most_s(None) == 0, "its patience to end")
        assert trainer.status([]) == signal.SIGKILL
        until(lambda: has_ended(child), "its child to be killed")
    theirs.close()


def test_only_source_is_run_warm(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("print()")
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz", interpreter="/usr/bin/env python3")
    (tmp_path / "empty.py").touch()
    subprocess.run([sys.executable, "-m", "compileall", "-b", "-q", tmp_path / "empty.py"], check=True)
    for name, expected in {
        "app.pyz": False,
        "app": False,
        "empty.pyc": False,
        "empty.py": True,
        "app/__main__.py": True,
        "missing.py": False,
    }.items():
        assert understood(["python", "-u", str(tmp_path / name)]) == expected, name


def test_a_supervisor_that_cannot_fork_leaves_the_script_its_signals(tmp_path):
    """A stand-in for a machine without processes: root cannot be denied any."""
    name = f"lmr-agent-test-{os.getpid()}"
    code = (
        "import os, signal\n"
        "def fork(): raise BlockingIOError(11, 'none left')\n"
        "os.fork = fork\n"
        "from lmr.integrations.torchrun import supervisor\n"
        "try: supervisor.start()\n"
        "except OSError: print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    with local_socket.listen(name):
        environ = {**os.environ, "LMR_AGENT_SOCKET": name, "RANK": "0", warm_request.SOCKET: ""}
        ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "set()\n", ran.stderr
