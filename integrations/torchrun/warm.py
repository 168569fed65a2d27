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
import gc
import importlib
import importlib.machinery
import io
import multiprocessing.process
import os
import random
import runpy
import signal
import sys
import types

from lmr.integrations.torchrun.inheritance import take_after, take_signals
from lmr.integrations.torchrun.process_tree import die_with_parent, name_process
from lmr.integrations.torchrun.warm_forks import WarmForks
from lmr.integrations.torchrun.warm_job import UNMOVED_BY, Job

PRELOADED = (
    "torch",
    "torch.distributed",
    "torch.utils.data",
    "torch._dynamo",  # DistributedDataParallel imports it when it is made, with sympy: another second
    "torch.profiler",
    "torch.profiler._cupti_monitor",  # the first batch of a DataLoader imports it
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


def run_job(job: Job, page_fd: int) -> None:
    """Run the script or module as `__main__`, as a fresh interpreter would."""
    _take_over(job)
    from lmr.integrations.torchrun.supervisor import become_trainer
    from lmr.integrations.torchrun.worker_page import WorkerPage

    become_trainer(WorkerPage(page_fd), job.supervisor)
    _hide_our_frames()
    arguments = job.arguments
    if arguments[0] == "-m":
        sys.argv[:] = ["-m", *arguments[2:]]
        sys.path[:] = [job.folder, *job.path]
        _run_module(arguments[1])
    else:
        sys.argv[:] = arguments
        sys.path[:] = [os.path.dirname(os.path.realpath(arguments[0])), *job.path]  # noqa: PTH120
        _run_script(arguments[0])


def _hide_our_frames() -> None:
    """An uncaught error looks as in a cold start: its traceback, and what is told apart by it, begins at the script."""
    told = sys.excepthook
    ours = (__file__, runpy.__file__, "<frozen runpy>")

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename in ours:
            trace = trace.tb_next
        told(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


def _run_module(name: str) -> None:
    """As the interpreter runs one; `runpy.run_module` would take `__main__` away again when its last line has run."""
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=builtins)
    sys.modules["__main__"] = main
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


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
    take_after(job.supervisor)
    take_signals(job.ignored, job.blocked)
    os.environ.clear()
    os.environ.update(job.environ)
    os.chdir(job.folder)
    name_process(f"rank{job.environ.get('RANK', '')}")  # its command line is the warm process's
    sys.orig_argv[:] = job.argv
    _open_streams(job.unbuffered or bool(job.environ.get("PYTHONUNBUFFERED")))
    multiprocessing.process.ORIGINAL_DIR = job.folder  # type: ignore[attr-defined]  # where spawned processes begin
    _draw_other_numbers()


def _open_streams(unbuffered: bool) -> None:
    """As the interpreter does. The streams of the warm process have no buffers below, whatever a trainer wants."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        if isinstance(stream, io.TextIOWrapper):
            lines = not unbuffered and (number == 2 or os.isatty(number))
            stream.reconfigure(write_through=unbuffered, line_buffering=lines)


def _draw_other_numbers() -> None:
    """Forks of one process would draw the same random numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _read_ahead() -> None:
    """What every trainer would look up in files."""
    from lmr.integrations.frameworks import version

    version.of("torch")


def main() -> None:
    """Load, then serve."""
    name, agent, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    die_with_parent(agent)
    for number in UNMOVED_BY:
        signal.signal(number, signal.SIG_IGN)  # the agent decides when this node ends
    for module in PRELOADED:
        try:
            importlib.import_module(module)
        except ImportError as error:  # another torch: what it lacks, trainers load themselves
            print(f"lmr: warm start without {module}: {error}", file=sys.stderr)
    _read_ahead()
    gc.collect()
    gc.freeze()  # what is here stays: forks share its pages, and do not walk through them when they end
    job, page_fd = WarmForks(name, ranks).serve()
    run_job(job, page_fd)


if __name__ == "__main__":
    main()
