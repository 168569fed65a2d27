"""Chooses which step is retained next, so that all nodes keep and replicate the same one.

Captures come every `interval` steps; keeping and replicating all of them would need more memory and network than a job
has. One retained step is in flight at a time: pinned ahead of the ranks, captured by every slot, replicated by every
slot, checked. Then the next is pinned. Slots are in lockstep through the training's own collectives, so one slot's
progress stands for all. In memory only: what becomes of a pin is a fact, the pin is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

LEAD_FIRST = 2
LEAD_MOST = 256
MISSED_AFTER_MS = 5_000
UNFINISHED_AFTER_MS = 60_000
"""A pin that every slot has captured is given up later: replicas of a large state take their time."""
VOUCH_WAIT_MS = 3_000
"""How long a step that is complete otherwise waits for continuity, before it is taken for as safe as it gets."""


@dataclass
class Pacer:
    """The retention of one generation.

    Args:
        slots: number of slots.
        interval: optimizer steps between captures.
        replicas: copies on other nodes a slot needs before its step counts as done.
        checked: whether a verdict on the step is awaited.
        publish_ms: least time between two pins.
        restored: the step this generation began with; kept until a newer one is as safe.
        spill_ms: least time between two steps that go to disk; None: none does.
    """

    slots: int
    interval: int
    replicas: int
    checked: bool
    publish_ms: int
    restored: int
    spill_ms: int | None = None
    vouches: Callable[[int], bool] = lambda _step: True
    """Whether checks that come after a step's capture have had their say: until then, the step before is kept too."""
    condemned: Callable[[], bool] = lambda: False
    """Whether the run goes back behind what is computed now: then no step replaces the one before."""
    pinned: int | None = None
    newest: int = 0
    certified: int | None = None
    complete: int | None = None
    _lead: int = LEAD_FIRST
    _pinned_at_ms: int = 0
    _spilled: int = 0
    _spilled_at_ms: int | None = None
    _captured: set[int] = field(default_factory=set)
    _replicated: dict[int, set[str]] = field(default_factory=dict)
    _verdict: str | None = None
    _unvouched_since_ms: int | None = None
    _overdue: bool = False

    def progress(self, step: int, now_ms: int) -> int | None:
        """Slot 0 has captured `step`. Returns the step to pin, when one is to be."""
        self.newest = max(self.newest, step)
        patience_ms = MISSED_AFTER_MS if len(self._captured) < self.slots else UNFINISHED_AFTER_MS
        if self.pinned is not None and self.newest > self.pinned and now_ms - self._pinned_at_ms > patience_ms:
            self._lead = min(self._lead * 2, LEAD_MOST)  # ranks passed the pin before they heard of it
            self.pinned = None
        if self.pinned is not None or now_ms - self._pinned_at_ms < self.publish_ms:
            return None
        return self._pin(now_ms)

    def _pin(self, now_ms: int) -> int:
        self.pinned = (self.newest // self.interval + self._lead) * self.interval
        self._pinned_at_ms = now_ms
        self._captured.clear()
        self._replicated.clear()
        self._verdict = None
        self._unvouched_since_ms = None
        self._overdue = False
        return self.pinned

    def captured(self, slot: int, step: int) -> bool:
        """A slot holds the pinned step; true when that completed it."""
        if step == self.pinned:
            self._captured.add(slot)
        return self._finish()

    def replicated(self, slot: int, step: int, holder: str) -> bool:
        """Another node holds a slot's copy; true when that completed the step."""
        if step == self.pinned:
            self._replicated.setdefault(slot, set()).add(holder)
        return self._finish()

    def verdict(self, step: int, verdict: str) -> bool:
        """The check of the pinned step has a result; true when that completed the step."""
        if step == self.pinned:
            self._verdict = verdict
        return self._finish()

    def look(self, now_ms: int) -> bool:
        """Ask again what is waited for; true when that completed the pinned step."""
        done = self._finish()
        if self.pinned is not None and self._is_complete():
            if self._unvouched_since_ms is None:
                self._unvouched_since_ms = now_ms
            self._overdue = now_ms - self._unvouched_since_ms > VOUCH_WAIT_MS
        return done

    def _finish(self) -> bool:
        if self.pinned is None or not self._is_complete() or self.condemned():
            return False
        if not (self._overdue or self.vouches(self.pinned)):
            return False
        self.complete = self.pinned
        if self._verdict == "clean":
            self.certified = self.pinned
        self.pinned = None
        return True

    def _is_complete(self) -> bool:
        if len(self._captured) < self.slots:
            return False
        if sum(len(holders) >= self.replicas for holders in self._replicated.values()) < self.slots and self.replicas:
            return False
        return not self.checked or self._verdict is not None

    def retained(self) -> list[int]:
        """Steps no node may overwrite."""
        kept = {self.certified, self.complete, self.pinned}
        if (self.certified is None and self.checked) or self.complete is None:
            kept.add(self.restored)
        return sorted(step for step in kept if step is not None)

    def spill(self, now_ms: int) -> int | None:
        """The retained step that goes to disk now, on every node the same; None when it is not time, or none is new."""
        step = self.certified if self.checked else self.complete
        if self.spill_ms is None or step is None or step <= self._spilled:
            return None
        if self._spilled_at_ms is not None and now_ms - self._spilled_at_ms < self.spill_ms:
            return None
        self._spilled, self._spilled_at_ms = step, now_ms
        return step
