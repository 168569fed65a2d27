"""The thread that drives the committer."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from typing import Protocol

from lmr.integrations.torchrun.committer import Committer, Fact

BATCH_EVENTS = 1_000


class Driver(Protocol):
    """Whoever calls `Committer.attempt`: a thread, or the simulation."""

    def start(self) -> None:
        """From here on only the driver touches the log."""

    def submit(self, fact: Fact) -> None:
        """Hand over one fact; never blocks."""

    async def stop(self) -> None:
        """End after what was submitted so far."""


class CommitterThread(threading.Thread):
    """Waits for facts or the next deadline and lets the committer commit.

    Args:
        committer: driven by this thread alone.
    """

    def __init__(self, committer: Committer) -> None:
        super().__init__(name="lmr-committer", daemon=True)
        self._committer = committer
        self._queue: queue.SimpleQueue[Fact | None] = queue.SimpleQueue()

    def submit(self, fact: Fact) -> None:
        """See `Driver`."""
        self._queue.put(fact)

    async def stop(self) -> None:
        """See `Driver`."""
        self._queue.put(None)
        await asyncio.to_thread(self.join, 10)

    def run(self) -> None:
        """The thread's loop."""
        while True:
            stopping = self._collect()
            if not self._committer.attempt() or stopping:
                return

    def _collect(self) -> bool:
        """Wait for facts or the next deadline; true when the thread should end."""
        until = time.monotonic() + self._committer.idle_s()
        resting = self._committer.retry_s > 0
        while self._committer.waiting < BATCH_EVENTS:
            wait = until - time.monotonic()
            blocking = wait > 0 and (resting or not self._committer.waiting)
            try:
                fact = self._queue.get(timeout=wait) if blocking else self._queue.get_nowait()
            except queue.Empty:
                return False
            if fact is None:
                return True
            self._committer.take(fact)
        return False
