"""Warm start: a process of the node that has torch loaded, and forks into trainers.

Importing torch is most of a restart's time. A node keeps one process that has done so, also while it is parked; a
supervisor that wants a trainer sends it what a fresh interpreter would have had (arguments, environment, folder,
`sys.path`, stdio) and gets a fork that runs the script as `__main__`. Nothing is computed here and CUDA is never
touched, so a fork is as good as new. Without it, or for a command line it does not know, trainers start cold.

    agent --- PDEATHSIG ---> warm process --- fork, PDEATHSIG ---> trainer (its own session)
    supervisor --- socket: start, exit status ---> warm process; the socket closes: the trainer is killed
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import importlib.machinery
import io
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import types
from dataclasses import dataclass
from typing import Any

from lmr.integrations.torchrun import local_socket
from lmr.integrations.torchrun.process_tree import die_with_parent, name_process

PRELOADED = (
    "torch",
    "torch.distributed",
    "torch.utils.data",
    "torch._dynamo",  # DistributedDataParallel imports it when it is made, with sympy: another second
    "torch.profiler",
    "lmr.integrations.frameworks.import_hook",
    "lmr.integrations.frameworks.version",
    "lmr.integrations.frameworks.trainer_context",
    "lmr.integrations.frameworks.pytorch.hooks",
    "lmr.integrations.scout.trainer",
    "lmr.integrations.scout.batch_order",
    "lmr.integrations.scout.torch_hooks",
    "lmr.integrations.scout.collectives",
    "lmr.integrations.torchrun.exit_errors",
    "lmr.integrations.torchrun.supervisor",
)
"""What a trainer needs before its script does anything: each would be imported anew in every rank."""


@dataclass(frozen=True)
class Job:
    """What a trainer is started with."""

    argv: list[str]
    environ: dict[str, str]
    folder: str
    path: list[str]
    supervisor: int

    @property
    def arguments(self) -> list[str]:
        """Everything after the interpreter and its flags."""
        return self.argv[2:] if self.argv[1] == "-u" else self.argv[1:]


class WarmProcess:
    """Forks trainers until its agent is gone.

    Args:
        name: abstract socket name to listen on.
    """

    def __init__(self, name: str) -> None:
        self._listener = local_socket.listen(name)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._trainers: dict[int, tuple[int, socket.socket]] = {}
        """By descriptor of the process: pid and supervisor."""
        self._supervisors: dict[socket.socket, int] = {}

    def serve(self) -> tuple[Job, int]:
        """Serve; returns in a forked trainer only, with its job and its page."""
        while True:
            for key, _ in self._selector.select():
                source: Any = key.fileobj
                if source is self._listener:
                    begun = self._accept()
                    if begun is not None:
                        return begun
                elif isinstance(source, socket.socket):
                    self._supervisor_gone(source)
                else:
                    self._trainer_ended(int(source))

    def _accept(self) -> tuple[Job, int] | None:
        sock, _ = self._listener.accept()
        try:
            local_socket.check_peer(sock)
            sock.settimeout(5)
            received = local_socket.receive(sock)
            if received is None or len(received[1]) != 4:
                raise local_socket.LocalSocketError("no job")
            job = Job(**received[0])
        except (OSError, TypeError, local_socket.LocalSocketError) as error:
            print(f"lmr: a warm start was refused: {error}", file=sys.stderr)
            sock.close()
            return None
        fds, me = received[1], os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(fds[:3], me)
            return job, fds[3]
        for fd in fds:
            os.close(fd)
        sock.settimeout(None)
        descriptor = os.pidfd_open(pid)
        self._trainers[descriptor] = (pid, sock)
        self._supervisors[sock] = pid
        self._selector.register(descriptor, selectors.EVENT_READ)
        self._selector.register(sock, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            local_socket.send(sock, {"pid": pid})
        return None

    def _become(self, stdio: list[int], parent: int) -> None:
        """In the fork: a process like one torchrun started, with nothing of the warm process left in it."""
        os.setsid()
        die_with_parent(parent)
        for number, fd in enumerate(stdio):
            os.dup2(fd, number)
            os.close(fd)
        self._selector.close()
        self._listener.close()
        for descriptor, (_, sock) in self._trainers.items():
            os.close(descriptor)
            sock.close()

    def _trainer_ended(self, descriptor: int) -> None:
        pid, sock = self._trainers.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        if status != 0:
            _kill_session(pid)
        if self._supervisors.pop(sock, None) is not None:
            self._selector.unregister(sock)
            with contextlib.suppress(OSError):
                local_socket.send(sock, {"status": status})
        sock.close()

    def _supervisor_gone(self, sock: socket.socket) -> None:
        """A supervisor says nothing after its job: readable means that it is gone."""
        pid = self._supervisors.pop(sock)
        self._selector.unregister(sock)
        _kill_session(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _kill_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def run_job(job: Job, page_fd: int) -> None:
    """Run the script or module as `__main__`, as a fresh interpreter would."""
    _take_over(job)
    from lmr.integrations.torchrun.supervisor import become_trainer
    from lmr.integrations.torchrun.worker_page import WorkerPage

    become_trainer(WorkerPage(page_fd), job.supervisor)
    _hide_our_frames()
    arguments = job.arguments
    if arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        sys.path[:] = [job.folder, *job.path]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = arguments
        sys.path[:] = [os.path.dirname(os.path.realpath(arguments[0])), *job.path]  # noqa: PTH120
        _run_script(arguments[0])


def _hide_our_frames() -> None:
    """An uncaught error looks as in a cold start: its traceback, and what is told apart by it, begins at the script."""
    told = sys.excepthook
    ours = (__file__, runpy.__file__, "<frozen runpy>")

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename in ours:
            trace = trace.tb_next
        told(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


def _run_script(given: str) -> None:
    """As the interpreter runs a script; `runpy` would change `sys.argv[0]`."""
    path = os.path.abspath(given)  # noqa: PTH100 - as Python itself does
    main = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __loader__=loader, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), given, "exec", dont_inherit=True)
    exec(code, vars(main))  # noqa: S102 - it is the user's script


def _take_over(job: Job) -> None:
    os.environ.clear()
    os.environ.update(job.environ)
    os.chdir(job.folder)
    name_process(f"rank{job.environ.get('RANK', '')}")  # its command line is the warm process's
    sys.orig_argv[:] = job.argv
    if job.argv[1] == "-u":
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(write_through=True)
    random.seed()  # forks of one process would draw the same numbers
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def main() -> None:
    """Load, then serve."""
    name, agent = sys.argv[1], int(sys.argv[2])
    die_with_parent(agent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent decides when this node ends
    for module in PRELOADED:
        try:
            importlib.import_module(module)
        except ImportError as error:  # another torch: what it lacks, trainers load themselves
            print(f"lmr: warm start without {module}: {error}", file=sys.stderr)
    gc.collect()
    gc.freeze()  # what is here stays: forks share its pages, and do not walk through them when they end
    job, page_fd = WarmProcess(name).serve()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_job(job, page_fd)


if __name__ == "__main__":
    main()
