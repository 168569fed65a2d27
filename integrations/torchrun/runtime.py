"""The node of this agent on a thread of its own, as torchrun's thread sees it.

That thread asks two questions through `current()`: which committed plan is mine, and is it over.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import structlog

from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.current import Current
from lmr.integrations.torchrun.errors import MeetingFailed
from lmr.integrations.torchrun.hosting import OTHERS_LEAVE_S
from lmr.integrations.torchrun.identity import Identity
from lmr.integrations.torchrun.meeting import meet
from lmr.integrations.torchrun.node import Node

log = structlog.get_logger("lmr.node")

LOOK_S = 0.2
"""How often an agent that joins looks whether it was told to leave."""
WAKE_S = 0.05
"""How long the node's loop waits for a look that is going on; looks that are not woken last no longer than usual."""
ANSWER_S = 10.0
"""What the node's loop takes at most for what it can do at once."""


class NodeRuntime:
    """Runs one agent's node. Every method may be called from torchrun's thread.

    Args:
        config: checked settings.
    """

    def __init__(self, config: BackendConfig) -> None:
        self._config = config
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lmr-node", daemon=True)
        self._node = Node(config, self._loop, self._wake)
        self._leaving = False
        self._closed = False

    def _wake(self) -> None:
        """Wake torchrun's thread; one that a signal stopped in the middle of looking sees the news when it looks on."""
        if self._changed.acquire(timeout=WAKE_S):
            self._changed.notify_all()
            self._changed.release()

    @property
    def identity(self) -> Identity:
        """This agent; the incarnation changes when the node had to rejoin."""
        return self._node.identity

    @property
    def address(self) -> str:
        """What peers reach this node by."""
        return self._node.address

    @property
    def supervised(self) -> bool:
        """Whether every current worker reported itself."""
        return self._node.supervised

    def current(self) -> Current:
        """The latest word. Never blocks."""
        return self._node.current

    def wait_for_change(self, seen: Current, timeout_s: float) -> Current:
        """Sleep until something differs from `seen`, at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._node.current is not seen, timeout_s)
            return self._node.current

    def join(self, local_world_size: int, cancelled: Any, script: Path | None) -> None:
        """Meet, host the run if nobody does, and be admitted.

        Args:
            local_world_size: workers of this node.
            cancelled: whether the agent was told to leave meanwhile.
            script: what the workers run, where that is a file.

        Raises:
            MeetingFailed: the endpoint could not be served or reached, or the agent was told to leave meanwhile.
            AdmissionRefused: the run does not take this agent.
            StoreError: the event log cannot be opened.
        """
        self._thread.start()
        meets = self._config.embedded or self._config.secret is None
        meeting = meet(self._config, cancelled) if meets else None
        entering = asyncio.run_coroutine_threadsafe(self._node.enter(local_world_size, meeting, script), self._loop)
        while not concurrent.futures.wait([entering], LOOK_S).done:
            if cancelled():
                entering.cancel()
                raise MeetingFailed("told to leave while joining")
        entering.result()

    def arrive(self, generation: int, store: dict[str, Any] | None) -> None:
        """This node is ready to start the generation's workers; slot 0 brings the workers' store."""
        self._tell(self._node.arrive, generation, store)

    def starting(self, ranks: tuple[int, ...], generation: int) -> None:
        """The agent is about to start these workers."""
        self._do(self._node.expect(ranks, generation), ANSWER_S)

    def environment(self) -> dict[str, str]:
        """What workers find in their environment."""
        return self._node.environment()

    def kill_workers(self, more_pids: list[int]) -> None:
        """SIGKILL the current workers; `more_pids` are those the agent knows."""
        self._node.kill_workers(more_pids)

    def stopped(self) -> None:
        """The agent is between generations; a displaced node has stopped its workers."""
        self._tell(self._node.stopped)

    def report_unsupervised_start(self, generation: int) -> None:
        """The workers run, but say nothing of themselves."""
        self._tell(self._node.unsupervised_started, generation)

    def report_unsupervised_finish(self, generation: int) -> None:
        """Workers that say nothing of themselves have all succeeded, as torchrun saw."""
        self._tell(self._node.unsupervised_finished, generation)

    def report_unsupervised_failure(self, generation: int) -> None:
        """The agent saw its workers fail and no supervisor said so."""

        async def report() -> None:
            self._node.unsupervised_failed(generation)

        self._do(report(), ANSWER_S)

    def told_to_leave(self, patience_s: float) -> None:
        """The agent got a signal that ends it. Called from a signal handler.

        Args:
            patience_s: how long saving the node's state may take before this returns; 0 or a second signal: not at all.
        """
        first, self._leaving = not self._leaving, True
        if not first or patience_s <= 0 or self.current().mine is None:
            self._tell(self._node.told_to_leave)
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self._do(self._node.save_and_leave(patience_s), patience_s + 1)

    def close(self, reason: str) -> None:
        """Leave the run: goodbye, end the vault, and on the host wait for the others first. Safe to call twice."""
        if self._closed or not self._thread.is_alive():
            return
        self._closed = True
        try:
            self._do(self._node.leave(reason), OTHERS_LEAVE_S + ANSWER_S)
        except Exception as error:  # noqa: BLE001 - the process is ending; say it and end
            log.warning("leave_incomplete", why=repr(error))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2)

    def _do(self, work: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def _tell(self, call: Callable[..., None], *values: Any) -> None:
        self._loop.call_soon_threadsafe(call, *values)
