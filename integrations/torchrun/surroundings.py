"""What an agent's runtime finds around it: clocks, logs, sockets and processes, as one value.

The simulation gives a world of its own; everything else of the runtime is the same code.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from lmr.integrations.torchrun import local_socket
from lmr.integrations.torchrun.clock import SYSTEM, Clock
from lmr.integrations.torchrun.committer import Committer
from lmr.integrations.torchrun.committer_thread import CommitterThread, Driver
from lmr.integrations.torchrun.election import listen
from lmr.integrations.torchrun.identity import Identity, identify
from lmr.integrations.torchrun.vault_link import VaultLink
from lmr.integrations.torchrun.workers import Workers
from lmr.store import EventLog, open_log


@dataclass(frozen=True)
class Surroundings:
    """The real world, unless told otherwise."""

    clock: Clock = SYSTEM
    identify: Callable[[str | None], Identity] = identify
    open_log: Callable[[str], EventLog] = open_log
    listen: Callable[[], socket.socket] = listen
    drive: Callable[[Committer], Driver] = CommitterThread
    workers: type[Workers] = Workers
    vault_link: type[VaultLink] = VaultLink
    claim: Callable[[str], object] = local_socket.listen
    """Takes a name only one process of the machine can have. Raises OSError when it is taken."""


REAL = Surroundings()
