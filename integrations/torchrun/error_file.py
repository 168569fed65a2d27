"""The agent's error file: where schedulers read why an agent ended, if they set TORCHELASTIC_ERROR_FILE.

torchrun writes it for exceptions of its own. An agent of ours leaves with `SystemExit`, of which it writes nothing.
"""

from __future__ import annotations

import os

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from lmr.integrations.torchrun.errors import RunEnded


def write_error_file(reason: str) -> None:
    """Say why, in torchrun's own format; nothing without the variable."""
    if not os.environ.get("TORCHELASTIC_ERROR_FILE"):
        return
    try:
        raise RunEnded(reason)
    except RunEnded as ended:
        get_error_handler().record_exception(ended)
