"""Puts the faults of a campaign into trainers. On PYTHONPATH only where `lmr inject` put it.

Python imports exactly one `sitecustomize`: the one this file hides is run first.
"""

import os
import sys


def _run_shadowed() -> None:
    """Run the next `sitecustomize` on the path. Only those behind this one: the one before it has led here."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120  pathlib is 10 ms of every process start
    places = [os.path.realpath(entry or ".") for entry in sys.path]
    behind = sys.path[places.index(here) + 1 :] if here in places else []
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", behind)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_shadowed()

if "LMR_FAULT_CAMPAIGN" in os.environ:
    try:
        from lmr.integrations.faults.inside import attach

        attach.install()
    except Exception as _error:  # noqa: BLE001
        # A campaign that silently does nothing would be taken for a recovery that works.
        print(f"lmr inject: the campaign cannot be put into this process: {_error!r}", file=sys.stderr)
        sys.exit(2)
