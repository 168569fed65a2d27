"""Seeded pulse streams: a synchronous training of some ranks, as the summaries of its nodes, with or without a fault.

Each rank's life is a list of segments (when it began to do what); a step is data, forward and backward, reduction,
optimizer and one public all_reduce of the whole world. Nodes look at different moments. What is clean is not calm:
other jobs take the processor, pauses come, rank 0 evaluates and saves.
"""

from __future__ import annotations

import bisect
import random
from dataclasses import dataclass, field
from typing import Any

from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.pulse import stable_hash
from lmr.integrations.scout.summary import GroupState, Summary, to_wire

WORLD = stable_hash("0", "all")
CALL = stable_hash("all_reduce", "torch.float32", "1")
OTHER_CALL = stable_hash("broadcast", "torch.float32", "1")
FOREVER = 10**9
REPORT_MS = 500


@dataclass
class Segment:
    """From `at_ms` on the rank does this."""

    at_ms: float
    phase: Phase
    step: int
    micro: int = 0
    waiting: bool = False
    entered: int = 0
    done: int = 0


@dataclass
class Fault:
    """What goes wrong, where and from which step on."""

    kind: str
    rank: int
    step: int
    size: float = 1.0
    phase: Phase = Phase.BACKWARD


@dataclass
class Life:
    """One rank's segments, and what it had done in total at the start of each."""

    segments: list[Segment] = field(default_factory=list)
    calls: dict[int, int] = field(default_factory=dict)
    nonfinite_step: int | None = None
    stopped_ms: float = FOREVER
    longest_step_ms: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Stream:
    """A training of `world` ranks, two a node.

    Args:
        seed: of everything random.
        world: ranks.
        fault: what goes wrong, None for a clean run.
        until_ms: how long to simulate.
    """

    seed: int
    world: int = 8
    fault: Fault | None = None
    until_ms: float = 150_000
    step_ms: float = 400.0
    noise: float = 0.05

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.lives = [Life() for _ in range(self.world)]
        self._simulate()

    # -- the training -------------------------------------------------------------------------------------------------

    def _simulate(self) -> None:
        rnd, fault = self.random, self.fault
        clock = [rnd.uniform(0, 500) for _ in range(self.world)]
        speed = [1 + rnd.uniform(-0.01, 0.01) for _ in range(self.world)]
        entered = [0] * self.world
        step, hung = 0, False
        while min(clock) < self.until_ms and not hung:
            load = rnd.random() < 0.05
            ready = []
            for r, life in enumerate(self.lives):
                here = fault if fault is not None and fault.rank == r and step >= fault.step else None
                t = clock[r]
                kind = here.kind if here is not None else ""
                for phase, share in ((Phase.DATA, 0.05), (Phase.FORWARD, 0.3), (Phase.BACKWARD, 0.5)):
                    life.segments.append(Segment(t, phase, step, entered=entered[r], done=entered[r]))
                    took = self.step_ms * share * speed[r] * max(0.5, rnd.gauss(1, self.noise))
                    if step == 0:
                        took *= 10
                    if load and rnd.random() < 0.3:
                        took *= rnd.uniform(1, 3)
                    if kind == "slow" and phase != Phase.DATA:
                        took *= 1 + here.size
                    if kind in ("hang", "stop", "input") and phase == here_phase(here) and step == here.step:
                        hung = True
                        if kind == "stop":
                            life.stopped_ms = t + 1
                        took = FOREVER
                    t += took
                    if took == FOREVER:
                        break
                ready.append(t)
            front = max(ready)
            for r, life in enumerate(self.lives):
                t = ready[r]
                if t >= FOREVER:
                    continue
                life.segments.append(Segment(t, Phase.REDUCE, step, entered=entered[r], done=entered[r]))
                if front >= FOREVER:
                    continue
                t = front + rnd.uniform(1, 5)
                life.segments.append(Segment(t, Phase.OPTIMIZER, step, micro=1, entered=entered[r], done=entered[r]))
                clock[r] = t + 0.05 * self.step_ms * speed[r]
            if hung:
                break
            step += 1
            hung = self._after_step(step, clock, entered)

    def _after_step(self, step: int, clock: list[float], entered: list[int]) -> bool:
        """The public all_reduce; then, now and then, an evaluation or a save. True when the run hangs here."""
        rnd, fault = self.random, self.fault
        for r, life in enumerate(self.lives):
            life.longest_step_ms.append((clock[r], self.step_ms * 1.3))
            if fault is not None and fault.kind == "nan" and fault.rank == r and step == fault.step:
                life.nonfinite_step = step
            if fault is not None and fault.kind == "nan" and step == fault.step + 1:
                life.nonfinite_step = life.nonfinite_step or step
        absent = fault.rank if fault is not None and fault.kind == "absent" and step == fault.step else None
        front = FOREVER if absent is not None else max(clock)
        for r, life in enumerate(self.lives):
            if r == absent:
                life.segments.append(Segment(clock[r], Phase.IDLE, step, entered=entered[r], done=entered[r]))
                continue
            entered[r] += 1
            desync = fault is not None and fault.kind == "desync" and fault.rank == r and step == fault.step
            life.calls[entered[r]] = OTHER_CALL if desync else CALL
            life.segments.append(
                Segment(clock[r], Phase.IDLE, step, waiting=True, entered=entered[r], done=entered[r] - 1)
            )
            if front < FOREVER:
                clock[r] = front + rnd.uniform(0.5, 3)
                life.segments.append(Segment(clock[r], Phase.IDLE, step, entered=entered[r], done=entered[r]))
        if front >= FOREVER or (fault is not None and fault.kind == "desync" and step == fault.step):
            return True
        if step % 40 == 0:
            self._long_section(step, clock, entered)
        elif rnd.random() < 0.01:  # everybody's storage or collector pauses somebody
            paused = rnd.randrange(self.world)
            clock[paused] += rnd.uniform(500, 8_000)
        return False

    def _long_section(self, step: int, clock: list[float], entered: list[int]) -> None:
        saves = self.random.random() < 0.5
        phase = Phase.CHECKPOINT if saves else Phase.EVAL
        for r in [0] if saves else range(self.world):
            self.lives[r].segments.append(Segment(clock[r], phase, step, entered=entered[r], done=entered[r]))
            clock[r] += self.random.uniform(3_000, 60_000)

    # -- what nodes see -----------------------------------------------------------------------------------------------

    def messages(self) -> list[tuple[int, dict[str, Any]]]:
        """The nodes' `pulse` messages with the time they arrive, in order."""
        looks = []
        for node in range(self.world // 2):
            t = self.random.uniform(0, REPORT_MS)
            while t < self.until_ms:
                looks.append((t, node))
                t += REPORT_MS * self.random.uniform(0.95, 1.3)
        return [(int(t), self._message(node, t)) for t, node in sorted(looks)]

    def _message(self, node: int, t: float) -> dict[str, Any]:
        return {
            "generation": 0,
            "ranks": [to_wire(self.summary(rank, t)) for rank in (2 * node, 2 * node + 1)],
            "groups": {str(WORLD): {"name": "0", "ranks": None}},
            "calls": {str(CALL): "all_reduce torch.float32 1"},
        }

    def summary(self, rank: int, t: float) -> Summary:
        """One rank as its node sees it at `t`."""
        life = self.lives[rank]
        totals = self._totals(rank)
        number = max(0, bisect.bisect_right(totals.starts, t) - 1)
        now = life.segments[number]
        spent = dict(totals.spent[number])
        bucket = _bucket(now)
        spent[bucket] = spent.get(bucket, 0.0) + max(0.0, t - now.at_ms)
        newest = range(max(1, now.entered - 11), now.entered + 1)
        return Summary(
            rank=rank,
            step=now.step,
            steps_here=now.step,
            micro=now.micro,
            phase=now.phase,
            waiting=now.waiting,
            waiting_group=WORLD if now.waiting else 0,
            still_ms=int(max(0.0, t - now.at_ms)),
            state="T" if t >= life.stopped_ms else "S",
            nonfinite_step=life.nonfinite_step if (life.nonfinite_step or FOREVER) <= now.step else None,
            role=7,
            batches=now.step + 1,
            longest_step_ms=int(self.step_ms * 2) if now.step > 1 else 0,
            longest_data_ms=int(self.step_ms * 0.1),
            own_us=int(1000 * spent.get("own", 0)),
            waited_us=int(1000 * spent.get("waited", 0)),
            data_us=int(1000 * spent.get("data", 0)),
            save_us=int(1000 * spent.get("save", 0)),
            groups=(GroupState(WORLD, now.entered, life.calls.get(now.entered, 0), now.done, 0, now.done),)
            if now.entered
            else (),
            recent=tuple((WORLD, seq, life.calls[seq]) for seq in newest if seq in life.calls),
        )

    def _totals(self, rank: int) -> _Totals:
        cache: dict[int, _Totals] = self.__dict__.setdefault("_cache", {})
        if rank not in cache:
            cache[rank] = _Totals(self.lives[rank].segments)
        return cache[rank]


class _Totals:
    """Time spent in each kind before each segment."""

    def __init__(self, segments: list[Segment]) -> None:
        self.starts = [segment.at_ms for segment in segments]
        self.spent: list[dict[str, float]] = []
        running: dict[str, float] = {}
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            self.spent.append(dict(running))
            if following is not None:
                bucket = _bucket(segment)
                running[bucket] = running.get(bucket, 0.0) + following.at_ms - segment.at_ms


def _bucket(segment: Segment) -> str:
    if segment.waiting or segment.phase == Phase.REDUCE:
        return "waited"
    return {Phase.DATA: "data", Phase.CHECKPOINT: "save", Phase.EVAL: "long"}.get(segment.phase, "own")


def here_phase(fault: Fault | None) -> Phase | None:
    """Where in the step a fault that stops the rank strikes."""
    if fault is None:
        return None
    return Phase.DATA if fault.kind == "input" else fault.phase
