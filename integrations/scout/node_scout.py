"""NodeScout: the eyes of one node. Reads its ranks' pages, tells the run, and saves evidence when asked.

It lives on the node runtime's asyncio loop. Pages are read there (microseconds each); what may wait for a process or
a disk runs in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from lmr.integrations.scout.capture import Target, capture, process_state
from lmr.integrations.scout.page import PulseReader
from lmr.integrations.scout.pulse_message import pulse_message
from lmr.integrations.scout.replay_policy import ReplayPolicy

log = structlog.get_logger("lmr.scout")

LOOK_S = 0.05
"""How often pages are looked at for the one number that others may wait for."""


class NodeScout:
    """Watches the trainers of one node.

    Args:
        policy: the run's `[replay]` table.
        send: tells the run something that is no fact: `send(kind, **values)`.
        artifact_folder: where evidence is kept.
    """

    def __init__(self, policy: ReplayPolicy, send: Callable[..., None], artifact_folder: Path) -> None:
        self._policy = policy
        self._send = send
        self._folder = artifact_folder
        self._generation = -1
        self._targets: dict[int, Target] = {}
        self._captures: set[asyncio.Task[None]] = set()
        self._pinned: int | None = None

    def expect(self, generation: int) -> None:
        """Workers of a new generation are about to start; the old ones are gone."""
        self._generation = generation
        for target in self._targets.values():
            target.reader.close()
        self._targets = {}
        self._pinned = None

    def trainer_said(self, message: dict[str, Any]) -> None:
        """A trainer's `pulse_page` message: where its page is."""
        try:
            if message["generation"] != self._generation:
                return
            rank, pid = int(message["rank"]), int(message["pid"])
            reader = PulseReader(pid, int(message["page"]))
            target = Target(rank, pid, self._generation, int(message["stacks"]), str(message["ask"]), reader)
        except (OSError, KeyError, TypeError, ValueError) as error:
            log.error("rank_not_observed", message=str(message)[:200], why=repr(error))
            return
        known = self._targets.get(rank)
        if known is not None:
            known.reader.close()
        self._targets[rank] = target

    @property
    def observed(self) -> tuple[int, ...]:
        """Ranks whose pages are read."""
        return tuple(sorted(self._targets))

    def report(self) -> None:
        """Tell the run how the ranks are."""
        if not self._targets:
            return
        readings = [(t.reader.read(), process_state(t.pid)) for t in self._targets.values()]
        message = pulse_message(self._generation, readings, time.monotonic_ns())
        self._send("pulse", **message)

    def pinned(self, step: int) -> None:
        """A step is to be kept: that its state was found again is told at once, because the run waits for it."""
        self._pinned = step

    async def run(self) -> None:
        """Report for ever; cancel to end."""
        if not self._policy.pulse.enabled:
            return
        reported = time.monotonic()
        while True:
            await asyncio.sleep(min(LOOK_S, self._policy.pulse.report_ms / 1000))
            now = time.monotonic()
            if now - reported >= self._policy.pulse.report_ms / 1000 or self._found_again():
                reported = now
                self.report()

    def _found_again(self) -> bool:
        """Whether every rank here has just looked at the pinned step's state again."""
        step = self._pinned
        if step is None or not self._targets or any(t.reader.checked_step < step for t in self._targets.values()):
            return False
        self._pinned = None
        return True

    def asked(self, message: dict[str, Any]) -> None:
        """The run wants evidence of some ranks (`capture`); the answer is a `captured` message."""
        if message["generation"] != self._generation:
            return
        targets = [self._targets[rank] for rank in message["ranks"] if rank in self._targets]
        if targets:
            task = asyncio.get_running_loop().create_task(self._capture(int(message["request"]), targets))
            self._captures.add(task)
            task.add_done_callback(self._captures.discard)

    async def _capture(self, request: int, targets: list[Target]) -> None:
        results = await asyncio.gather(
            *(asyncio.to_thread(capture, target, self._folder) for target in targets), return_exceptions=True
        )
        artifacts: list[dict[str, str]] = []
        for target, result in zip(targets, results, strict=True):
            if isinstance(result, BaseException):
                log.error("evidence_not_saved", rank=target.rank, why=repr(result))
            else:
                artifacts += result
        self._send("captured", request=request, ranks=[t.rank for t in targets], artifacts=artifacts)
