"""The example training, which raises an exception at its next step when it gets SIGUSR1: a bug that comes by chance."""

from __future__ import annotations

import os
import runpy
import signal
import time
from pathlib import Path
from typing import Any

import torch

EXAMPLE = Path(__file__).parents[2] / "integrations" / "operate" / "training_example.py"

STEP_S = float(os.environ.get("CHAOS_STEP_S", "0"))
"""Rest in each step: the pace of a campaign is then that of its faults, not of the machine."""

asked: list[int] = []
clip = torch.nn.utils.clip_grad_norm_


def clip_or_fail(*arguments: Any, **options: Any) -> Any:
    """Called by the example's loop in each step."""
    time.sleep(STEP_S)
    if asked:
        raise RuntimeError("a bug by chance")
    return clip(*arguments, **options)


signal.signal(signal.SIGUSR1, lambda number, _frame: asked.append(number))
torch.nn.utils.clip_grad_norm_ = clip_or_fail
runpy.run_path(str(EXAMPLE), run_name="__main__")
