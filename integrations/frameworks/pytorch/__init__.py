"""The PyTorch adapter: attaches to a script that knows nothing of it.

objects   optimizers, schedulers, scalers and loaders by creation order; models by what the optimizers update
steps     which optimizer steps are real
loaders   where each DataLoader stands, and how to get there again
rng       every random state of the process
ddp       the gradient buckets, on which the order of sums depends
state     all of it as one shard, and back
session   when: captures at iteration boundaries, restores before the first step
"""

from __future__ import annotations


def attach() -> None:
    """Observe the objects training is made of; called once, right after `import torch`."""
    from lmr.integrations.frameworks import trainer_context
    from lmr.integrations.frameworks.pytorch import hooks
    from lmr.integrations.frameworks.pytorch.session import Session

    context = trainer_context.current()
    if context is not None:
        hooks.install(Session(context))
