"""Where the trainer stands, and which fault is due.

    batches -> forward -> (backward, collectives) -> before_update -> after_update, and the step is complete

Everything here runs in the script's own thread, in hooks of torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmr.integrations.faults.campaign import (
    ENV_CAMPAIGN,
    ENV_MARKS,
    Campaign,
    InStep,
    Lasting,
    Partition,
    Targeted,
    Termination,
    load_campaign,
)
from lmr.integrations.faults.inside import process, updates
from lmr.integrations.faults.marks import Marks, Strike, node_of

RUNNER_S = 60.0
_AT_FORWARD = ("delay", "timeout", "hang", "exception", "resource_exhaustion", "message_drop", "network_partition")
_AFTER_UPDATE = ("checkpoint_corruption", "checkpoint_truncation", "checkpoint_missing", "process_termination")


@dataclass(frozen=True)
class Due:
    """A fault that is to strike now; `number` is its place in the campaign."""

    number: int
    fault: InStep


@dataclass
class Injector:
    """One trainer's faults.

    `torch` may have been loaded in a process that forks trainers, so who this is is asked at the first hook.
    """

    step: int = 0
    """The step the script is in, from 1; 0 where this process is no trainer."""
    _placed: dict[int, list[Due]] = field(default_factory=dict)
    _pid: int = 0
    _fresh: bool = True
    _primary: Any = None
    _slowed_until: dict[int, int] = field(default_factory=dict)
    _after: list[Callable[[], None]] = field(default_factory=list)

    @property
    def active(self) -> bool:
        """Whether this process is a trainer, and not a child of one."""
        if self._pid == 0 and "RANK" in os.environ and "TORCHELASTIC_RUN_ID" in os.environ:
            self._begin(load_campaign(Path(os.environ[ENV_CAMPAIGN])))
        return self._pid == os.getpid()

    def _begin(self, campaign: Campaign) -> None:
        self._pid = os.getpid()
        self.step = int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0")) + 1
        self._rank = int(os.environ["RANK"])
        self._node = node_of(os.environ)
        self._campaign = campaign
        self._marks = Marks(Path(os.environ[ENV_MARKS]))
        for number, fault in enumerate(campaign.faults):
            if isinstance(fault, InStep) and fault.node in (None, self._node):
                rank, step = campaign.place(number, int(os.environ["WORLD_SIZE"]))
                if rank == self._rank:
                    self._placed.setdefault(step, []).append(Due(number, fault))

    def due(self, *effects: str, target: str | None = None) -> Iterator[Due]:
        """Faults of these effects that strike in this step; each is marked as struck before it is given out."""
        if not self.active:
            return
        for due in self._placed.get(self.step, []):
            aim = due.fault.target if isinstance(due.fault, Targeted) else None
            if due.fault.effect in effects and aim == target and self.claim(due) is not None:
                yield due

    def claim(self, due: Due, detail: str = "") -> Path | None:
        """Mark a fault as struck; None when it has struck often enough."""
        strike = Strike(
            due.number, due.fault.effect, self._rank, self.step, self._node, self._pid, int(time.time() * 1000), detail
        )
        return self._marks.claim(strike, due.fault.times)

    def random(self, due: Due) -> Any:
        """What the fault draws from."""
        return self._campaign.random(due.number)

    # Places in a step ------------------------------------------------------------------------------------------------

    def forward(self) -> None:
        """A module is called: the first call after a step is that of the model."""
        if not self._fresh or not self.active:
            return
        self._fresh = False
        for number, last in self._slowed_until.items():
            fault = self._campaign.faults[number]
            if self.step <= last and isinstance(fault, Lasting):
                time.sleep(fault.ms / 1000)
        for due in self.due(*_AT_FORWARD):
            self._strike_process(due)

    def before_update(self, optimizer: Any) -> None:
        """An optimizer is about to step."""
        if not self._is_primary(optimizer):
            return
        for due in self.due("payload_corruption"):
            updates.flip_gradient(optimizer, due.fault, self.random(due))
        for _ in self.due("stale_state"):
            self._after.append(updates.put_back_later(optimizer))
        for _ in self.due("drop", target="update"):
            updates.lose_gradients(optimizer)

    def after_update(self, optimizer: Any) -> None:
        """An optimizer has stepped: the step is complete."""
        if not self._is_primary(optimizer):
            return
        while self._after:
            self._after.pop()()
        for _ in self.due("duplicate", target="update"):
            updates.step_again(optimizer)
        for due in self.due("tensor_corruption"):
            updates.flip_parameter(optimizer, due.fault, self.random(due))
        self._strike_from_outside()
        self.step += 1
        self._fresh = True

    def _is_primary(self, optimizer: Any) -> bool:
        if not self.active:
            return False
        if self._primary is None:
            self._primary = optimizer
        return self._primary is optimizer

    def _strike_process(self, due: Due) -> None:
        match due.fault:
            case Lasting(ms=ms, for_steps=steps):
                self._slowed_until[due.number] = self.step + steps - 1
                time.sleep(ms / 1000)
            case Partition():
                self._ask_runner(due)
            case fault:
                process.STRIKES[fault.effect]()

    def _strike_from_outside(self) -> None:
        for due in self._placed.get(self.step, []):
            if due.fault.effect not in _AFTER_UPDATE:
                continue
            alone = isinstance(due.fault, Termination) and due.fault.scope == "process"
            if alone:
                if self.claim(due) is not None:
                    process.die()
            elif self._ask_runner(due):
                process.die()

    def _ask_runner(self, due: Due) -> bool:
        """Mark the fault and wait for the runner; False when it has struck often enough."""
        path = self.claim(due)
        if path is None:
            return False
        if not self._marks.wait_done(path, RUNNER_S):
            raise TimeoutError(f"lmr inject did not do its part of fault {due.number} ({due.fault.effect})")
        return True
