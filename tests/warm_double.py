"""The warm process, and what asks it as a supervisor does."""

import os
import subprocess
import sys
import time
from pathlib import Path

from lmr.integrations.torchrun import local_socket
from lmr.integrations.torchrun.warm_request import interpreter

LIVES = "import sys; print('ready', flush=True); sys.stdin.read()"


def until(condition, what, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


def start_warm(ranks, before_exec=None, **environ):
    """A warm process, with all its forks ready."""
    name = f"lmr-warm-test-{os.getpid()}-{time.monotonic_ns()}"
    command = [sys.executable, "-u", "-m", "lmr.integrations.torchrun.warm", name, str(os.getpid()), str(ranks)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, **environ}, preexec_fn=before_exec)
    process.name = name
    until(lambda: len(children(process.pid)) == ranks, "the forks to stand ready")
    return process


def children(pid):
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def has_ended(pid):
    """Dead, whether or not its parent has noticed."""
    try:
        return state(pid) in "ZX"
    except OSError:
        return True


def is_gone(pid):
    return not Path(f"/proc/{pid}").exists()


class Supervisor:
    """Asks as a supervisor does, for a script that prints `ready` and lives until its input ends."""

    def __init__(self, warm, folder, body=LIVES, options=("-u",), environ=(), **other):
        script = folder / f"script{len(list(folder.iterdir()))}.py"
        script.write_text(body)
        inputs, self.input = os.pipe()
        self.output, outputs = os.pipe()
        page = os.memfd_create("page")
        os.ftruncate(page, 16384)
        given = [inputs, outputs, outputs, page]
        self.socket = local_socket.connect(warm.name)
        self.socket.settimeout(60)
        job = {
            "interpreter": interpreter(),
            "argv": [sys.executable, *options, str(script)],
            "environ": {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LMR_AGENT_SOCKET": "nobody", **dict(environ)},
            "folder": str(folder),
            "path": sys.path,
            "supervisor": os.getpid(),
            "ignored": [],
            "blocked": [],
            **other,
        }
        local_socket.send(self.socket, job, given)
        for descriptor in {*given}:
            os.close(descriptor)

    def pid(self):
        return local_socket.receive(self.socket)[0]["pid"]

    def status(self):
        return local_socket.receive(self.socket)[0]["status"]

    def says_all(self):
        said = b""
        while more := os.read(self.output, 1000):
            said += more
        return said.decode()

    def says(self, word):
        said = b""
        while word not in said and (more := os.read(self.output, 1000)):
            said += more
        return word in said

    def close(self):
        for descriptor in (self.input, self.output):
            os.close(descriptor)
        self.socket.close()
