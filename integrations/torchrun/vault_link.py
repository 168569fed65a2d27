"""The agent's side of its node's vault: start it, speak with it, notice its loss."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import structlog

from lmr.integrations.torchrun.local_peer import Peer
from lmr.integrations.torchrun.local_socket import LocalSocketError, connect

log = structlog.get_logger("lmr.vault_link")

START_S = 10.0
LOOK_AGAIN_S = 0.01


class VaultLink:
    """Control connection to the vault process of this node.

    Args:
        socket_name: abstract name the vault listens on.
        environ: what the vault is told at its start.
        on_message: called with each of its messages.
        on_lost: called when the vault is gone though nobody closed it.
    """

    def __init__(
        self,
        socket_name: str,
        environ: dict[str, str],
        on_message: Callable[[dict[str, Any]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.socket_name = socket_name
        self.port: int | None = None
        self._environ = environ
        self._on_message = on_message
        self._on_lost = on_lost
        self._peer: Peer | None = None
        self._ready = asyncio.Event()
        self._closing = False
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> bool:
        """Adopt a vault that is there, or start one. False when none came up: training goes on unprotected."""
        self._ready.clear()
        try:
            sock = connect(self.socket_name)
            log.info("vault_adopted")
        except (OSError, LocalSocketError):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lmr.integrations.gemini.vault"],
                env={**os.environ, **self._environ, "LMR_VAULT_SOCKET": self.socket_name},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            found = await self._find(self._process)
            if found is None:
                return False
            sock = found
        self._peer = Peer(sock, self._message, self._gone)
        self._peer.send("hello", role="agent", secret=self._environ["LMR_SECRET"])
        try:
            await asyncio.wait_for(self._ready.wait(), START_S)
        except asyncio.TimeoutError:
            log.error("vault_silent")
            return False
        return True

    async def _find(self, process: subprocess.Popen[bytes]) -> Any:
        until = time.monotonic() + START_S
        while time.monotonic() < until and process.poll() is None:
            try:
                return connect(self.socket_name)
            except OSError:
                await asyncio.sleep(LOOK_AGAIN_S)
        log.error("vault_did_not_start", exit_code=process.poll())
        return None

    def _message(self, _peer: Peer, message: dict[str, Any]) -> None:
        if message["kind"] == "ready":
            self.port = message["port"]
            self._ready.set()
        else:
            self._on_message(message)

    def _gone(self, _peer: Peer) -> None:
        self._peer = None
        if not self._closing:
            log.error("vault_lost")
            self._on_lost()

    @property
    def up(self) -> bool:
        """Whether the vault is there."""
        return self._peer is not None

    def send(self, kind: str, **values: Any) -> None:
        """Send one message; silently dropped when the vault is gone (its loss was reported)."""
        if self._peer is not None:
            self._peer.send(kind, **values)

    def close(self, *, end_vault: bool, forget: bool) -> None:
        """Let go of the vault; `end_vault` makes it exit and its memory vanish, `forget` also what it has on disk."""
        self._closing = True
        if end_vault:
            self.send("close", forget=forget)
        if self._peer is not None:
            self._peer.close()
        if self._process is not None and end_vault:
            try:
                self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self._process.kill()


def vault_environ(run_id: str, node: str, secret: bytes, worker_policy: dict[str, Any]) -> dict[str, str]:
    """What a vault process is told."""
    return {
        "LMR_RUN": run_id,
        "LMR_NODE": node,
        "LMR_SECRET": secret.hex(),
        "LMR_WORKER_POLICY": json.dumps(worker_policy),
    }
