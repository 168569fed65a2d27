"""What a trainer tells its node runtime. Never waits; what cannot be sent is counted and said later."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

from lmr.integrations.frameworks.trainer_context import TrainerContext
from lmr.integrations.torchrun import local_socket

STEPPED_EVERY_S = 0.2


class AgentLink:
    """One trainer's connection to its node runtime.

    Args:
        context: who the trainer is.
    """

    def __init__(self, context: TrainerContext) -> None:
        self._context = context
        self._sock: socket.socket | None = None
        self._stepped_at: float | None = None
        self._said: set[str] = set()
        self.dropped = 0
        try:
            self._sock = local_socket.connect(context.agent_socket)
        except (OSError, local_socket.LocalSocketError) as error:
            print(f"lmr: rank {context.rank} cannot reach its node runtime: {error}", file=sys.stderr)
        self._send({"kind": "hello", "role": "trainer", "rank": context.rank, "pid": os.getpid()})

    def stepped(self, step: int) -> None:
        """An optimizer step is complete; told for the first one and then now and then."""
        now = time.monotonic()
        if self._stepped_at is None or now - self._stepped_at >= STEPPED_EVERY_S:
            self._stepped_at = now
            self._send({"kind": "stepped", "rank": self._context.rank, "step": step})

    def restored(self, step: int, tier: str) -> None:
        """This rank holds the agreed state."""
        self._send({"kind": "restored", "rank": self._context.rank, "step": step, "tier": tier})

    def restore_failed(self, step: int, slot: int, holder: str, tier: str, why: str) -> None:
        """This rank could not take the agreed state over."""
        self._send(
            {
                "kind": "restore_failed",
                "rank": self._context.rank,
                "step": step,
                "slot": slot,
                "holder": holder,
                "tier": tier,
                "why": why,
            }
        )

    def persisted(self, step: int, checkpoint_id: str) -> None:
        """A durable checkpoint of the script is complete. Called on any thread."""
        self._send({"kind": "persisted", "rank": self._context.rank, "step": step, "checkpoint_id": checkpoint_id})

    def reran(self, result: dict[str, Any]) -> None:
        """A call was computed again; what came out is compared with the other ranks'."""
        self._send({"kind": "rerun", "rank": self._context.rank, **result})

    def degraded(self, what: str, why: str) -> None:
        """Protection is weaker than it should be; each thing is said once, here and in the worker's output."""
        if what in self._said:
            return
        self._said.add(what)
        print(f"lmr: rank {self._context.rank}: {what}: {why}", file=sys.stderr)
        self._send({"kind": "degraded", "what": what, "why": why})

    def back(self, what: str, how: str) -> None:
        """What was said to be degraded is so no longer; should it be so again, that is said again."""
        if what not in self._said:
            return
        self._said.remove(what)
        print(f"lmr: rank {self._context.rank}: {what}: {how}", file=sys.stderr)
        self._send({"kind": "back", "what": what, "how": how})

    def _send(self, message: dict[str, Any]) -> None:
        if self._sock is None:
            return
        try:
            local_socket.send(self._sock, {**message, "generation": self._context.generation}, wait=False)
        except (OSError, local_socket.LocalSocketError):
            self.dropped += 1
