"""Runs in every Python process of a torchrun worker and acts in the worker itself only.

The rendezvous backend puts this folder first on PYTHONPATH. Python imports exactly one `sitecustomize`, so the one this
file hides is run first. Then, in a worker and nowhere else, the process becomes supervisor and trainer
(`lmr.integrations.torchrun.supervisor`). Nothing here imports torch, and nothing here may keep user code from running.
"""

import os
import sys


def _run_shadowed() -> None:
    """Run the `sitecustomize` that would have been found without this folder."""
    here = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120  pathlib is 10 ms of every process start
    path = [entry for entry in sys.path if os.path.realpath(entry or ".") != here]
    finder = next((f for f in sys.meta_path if getattr(f, "__name__", "") == "PathFinder"), None)
    spec = finder.find_spec("sitecustomize", path) if finder is not None else None
    if spec is None or spec.loader is None:
        return
    import importlib.util  # only now: it is a third of what this file costs every process of a worker

    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _is_worker() -> bool:
    """Whether this process is the worker torchrun started, not one of its many children."""
    wanted = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "LMR_AGENT_SOCKET")
    if any(name not in os.environ for name in wanted) or "LMR_SUPERVISED_BY" in os.environ:
        return False
    argv = list(getattr(sys, "orig_argv", []))
    return not any("multiprocessing" in argument for argument in argv) and not _is_one_liner(argv[1:])


def _is_one_liner(arguments: list[str]) -> bool:
    """Whether Python was started with `-c`: a helper, never a training script."""
    for argument in arguments:
        if argument == "-m" or not argument.startswith("-"):
            return False
        if not argument.startswith("--") and "c" in argument:
            return True
    return False


try:
    _run_shadowed()
except Exception as _error:  # noqa: BLE001  the hidden file's fault must not become ours
    print(f"lmr: the shadowed sitecustomize failed: {_error!r}", file=sys.stderr)

if _is_worker():
    try:
        from lmr.integrations.torchrun import supervisor

        supervisor.start()
    except Exception as _error:  # noqa: BLE001  protection may fail, user code may not
        print(f"lmr: this worker runs unprotected: {_error!r}", file=sys.stderr)
