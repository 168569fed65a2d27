"""How an agent's process ends once everything is said.

Taking apart an interpreter with torch in it costs most of a second of processor time, many seconds on a loaded machine,
and nothing is gained by it. Under the torchrun command the process therefore ends right after its exit handlers.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import NoReturn

from lmr.integrations.torchrun.error_file import write_error_file


def end_process(reason: str, code: int) -> NoReturn:
    """Print the reason as the last line, unwind, run the exit handlers, and end with the code."""
    if code:
        write_error_file(reason)
    print(f"lm_resiliency: {'error: ' if code else ''}{reason}", file=sys.stderr, flush=True)
    if _is_torchrun():
        atexit.register(_Ending(code))
    raise SystemExit(code)


def _is_torchrun() -> bool:
    """Whether this process is the torchrun command: in a launcher's own process others decide how it ends."""
    program = Path(sys.argv[0])
    return program.name == "torchrun" or program.parts[-3:] == ("torch", "distributed", "run.py")


class _Ending:
    def __init__(self, code: int) -> None:
        self._code = code

    def __call__(self) -> None:
        atexit.unregister(self)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._code)
