"""The PyTorch adapter: attaches to a script that knows nothing of it.

objects   optimizers, schedulers, scalers and loaders by creation order; models by what the optimizers update
steps     which optimizer steps are real
loaders   where each DataLoader stands, and how to get there again
rng       every random state of the process
ddp       the gradient buckets, on which the order of sums depends
sharding  parameters of which a rank holds a part: DTensor, fully_shard
state     all of it as one shard, and back
session   when: captures at iteration boundaries, restores before the first step
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lmr.integrations.frameworks.pytorch.session import Session
    from lmr.integrations.frameworks.trainer_context import TrainerContext
    from lmr.integrations.scout.pulse import Pulse

_session: Session | None = None


def current() -> Session | None:
    """The session of this process, once torch was imported in a supervised worker."""
    return _session


def attach() -> None:
    """Observe the objects training is made of; called once, right after `import torch`."""
    global _session
    from lmr.integrations.frameworks import trainer_context, version
    from lmr.integrations.frameworks.pytorch import hooks
    from lmr.integrations.frameworks.pytorch.session import Session

    context = trainer_context.current()
    if context is not None:
        # First, so that what the session does at a boundary is not taken for waiting for data.
        pulse = _observe(context) if context.enable_detection else None
        _session = Session(context, pulse)
        if version.fits("torch"):
            hooks.install(_session)


def _observe(context: TrainerContext) -> Pulse | None:
    """Let SCOUT watch; its failure must not cost the protection of state."""
    from lmr.integrations.scout import trainer

    try:
        return trainer.attach(context)
    except Exception as error:  # noqa: BLE001  a blind spot, said; training goes on
        print(f"lmr: rank {context.rank} is not observed: {error!r}", file=sys.stderr)
        return None
