"""The part of fault injection that runs in trainers.

    attach     once torch is imported: hooks below those of others; collectives above them
    injector   where the trainer stands, and which fault is due
    updates    parameters, gradients and optimizer steps
    batches    what loaders give out
    messages   collectives and the sockets below them
    process    what happens to the process itself

Importing it without a campaign in the environment is an error, so that no production process ever holds it.
"""

import os

from lmr.integrations.faults.campaign import ENV_CAMPAIGN

if ENV_CAMPAIGN not in os.environ:
    raise ImportError(f"{__name__} makes faults on purpose; it is for processes started by `lmr inject` only")
