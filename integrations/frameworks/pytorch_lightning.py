"""Lightning under its older name, the package `pytorch_lightning`: not followed, and not half protected either."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from lmr.integrations.frameworks import adapter


def attach() -> None:
    """Wire into its loop; called once, right after it was imported."""
    adapter.replace(sys.modules["pytorch_lightning.loops.fit_loop"]._FitLoop, "run", _refusing)


def _refusing(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def running(loop: Any) -> Any:
        session = adapter.session()
        if session is not None:
            session.refuse_framework("pytorch_lightning is not supported; the same Trainer of `import lightning` is")
        return run(loop)

    return running
