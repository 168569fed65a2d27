"""This node's warm process, as the node runtime sees it: started, started again, and where supervisors find it."""

from __future__ import annotations

import os
import subprocess
import sys

import structlog

from lmr.integrations.torchrun import warm_request

log = structlog.get_logger("lmr.node")


class WarmSide:
    """Keeps one warm process; without one, trainers start cold.

    Args:
        scope: tells this run's node from others on the machine.
    """

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_name = ""

    def keep(self, generation: int, ranks: int) -> None:
        """Start it unless it runs or is switched off.

        Args:
            generation: the newest this node knows of.
            ranks: of this node.
        """
        if os.environ.get(warm_request.SWITCH) == "0" or (self._process is not None and self._process.poll() is None):
            return
        self._socket_name = f"lmr-warm-{self._scope}-{os.getpid()}-{generation}"
        told = [self._socket_name, str(os.getpid()), str(ranks)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "lmr.integrations.torchrun.warm", *told], stdin=subprocess.DEVNULL
            )
        except OSError as error:
            log.warning("no_warm_start", why=str(error))

    def environment(self) -> dict[str, str]:
        """What supervisors find in their environment."""
        return {
            warm_request.SOCKET: self._socket_name,
            warm_request.PROCESS: str(self._process.pid) if self._process is not None else "",
        }

    def close(self) -> None:
        """End it, and with it what was forked from it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
