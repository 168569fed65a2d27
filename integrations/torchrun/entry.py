"""The entry point torchrun loads: `torchrun.handlers: lm_resiliency`.

Every torchrun imports this module, also with another backend, so it imports nothing heavy, prints nothing and never
raises. torch calls `handler_factory()` once and keeps what it returns as the creator
(torch/distributed/elastic/rendezvous/registry.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

BACKEND = "lm_resiliency"
"""The name the user gives to `--rdzv-backend`."""


def handler_factory() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The creator torchrun calls with its rendezvous parameters."""
    return _create


def _create(params: RendezvousParameters) -> RendezvousHandler:
    from lmr.integrations.torchrun.handler import create_handler  # heavy: only for the run that asked for us

    return create_handler(params)
