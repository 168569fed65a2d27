"""What this node says of its workers: started, restored, resumed, finished, and how each ended."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from lmr.engine.events import (
    Data,
    ExitError,
    GenerationStarted,
    StateRestored,
    TrainingResumed,
    WorkerExited,
    WorkersFinished,
)
from lmr.integrations.torchrun.workers import Exit

ECHO_GATHER_S = 0.03
"""How long exits that only echo a peer's are gathered, to be one fact."""


@dataclass
class _Generation:
    """What was said of the present generation."""

    number: int = -1
    ranks: tuple[int, ...] = ()
    started: bool = False
    restored: dict[int, int] = field(default_factory=dict)
    resumed: bool = False
    finished: bool = False
    fenced: bool = False


class WorkerReports:
    """Turns what happens to the workers into facts; each is said once a generation.

    Args:
        node: this node.
        fact: publishes one fact.
        flush: lets the vault say first what it holds.
        spawn: runs a coroutine for as long as the runtime lives.
    """

    def __init__(
        self,
        node: str,
        fact: Callable[[Data], None],
        flush: Callable[[], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._node = node
        self._fact = fact
        self._flush = flush
        self._spawn = spawn
        self._said = _Generation()
        self._exits: list[Exit] = []
        self._reporting = False

    @property
    def generation(self) -> int:
        """The generation whose workers were started last; -1 before the first."""
        return self._said.number

    def expect(self, generation: int, ranks: tuple[int, ...]) -> None:
        """From here on these workers are spoken of."""
        self._said = _Generation(generation, ranks)
        self._exits.clear()

    def started(self) -> None:
        """Every worker of this node runs. Those slow to say so may have been taken for silent ones before."""
        if self._said.started:
            return
        self._said.started = True
        self._fact(GenerationStarted(generation=self._said.number, node=self._node))

    def restored(self, rank: int, step: int, tier: str) -> bool:
        """A rank has loaded its state; when all have, the node has. Whether all have."""
        said = self._said
        said.restored[rank] = step
        if said.restored.keys() != set(said.ranks):
            return False
        self._fact(StateRestored(generation=said.number, node=self._node, step=step, tier=tier))
        return True

    def stepped(self, step: int) -> None:
        """Rank 0 completed a step; the first one says that training goes on."""
        if not self._said.resumed:
            self._said.resumed = True
            self._fact(TrainingResumed(generation=self._said.number, step=step))

    def finished(self) -> None:
        """Every script of this node has returned."""
        if not self._said.finished:
            self._said.finished = True
            self._spawn(self._report_finished(self._said.number))

    async def _report_finished(self, generation: int) -> None:
        await self._flush()
        self._fact(WorkersFinished(generation=generation, node=self._node))

    def exited(self, ended: Exit) -> None:
        """One worker failed."""
        self._exits.append(ended)
        if not self._reporting:
            self._reporting = True
            self._spawn(self._report_exits())

    def fenced(self, generation: int) -> bool:
        """This node stops its workers: nobody's failure, so an echo. False when none of that generation runs."""
        said = self._said
        if said.number != generation or said.finished or said.fenced:
            return False
        said.fenced = True
        ended = Exit(said.ranks[0], signal=signal.SIGKILL, error=ExitError(kind="collective", type="Fenced"))
        self._fact(self._exit_fact(ended, ranks=said.ranks))
        return True

    async def _report_exits(self) -> None:
        """What the vault holds first, then primary exits one by one, then the node's echoes as one fact."""
        while self._exits:
            await self._flush()
            self._publish_primaries()
            if self._exits:
                await asyncio.sleep(ECHO_GATHER_S)
                self._publish_primaries()
            self._publish_echoes()
        self._reporting = False

    def _publish_primaries(self) -> None:
        for ended in [e for e in self._exits if not e.secondary]:
            self._exits.remove(ended)
            self._fact(self._exit_fact(ended, rank=ended.rank))

    def _publish_echoes(self) -> None:
        if echoes := [e for e in self._exits if e.secondary]:
            self._exits = [e for e in self._exits if not e.secondary]
            ranks = tuple(sorted(e.rank for e in echoes))
            alone = {"rank": echoes[0].rank} if len(ranks) == 1 else {"ranks": ranks}
            self._fact(self._exit_fact(echoes[0], **alone))

    def _exit_fact(self, ended: Exit, **ranks: Any) -> WorkerExited:
        return WorkerExited(
            generation=self._said.number,
            node=self._node,
            exit_code=ended.exit_code,
            signal=ended.signal,
            step=ended.step,
            error=ended.error,
            **ranks,
        )
