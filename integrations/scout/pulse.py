"""The writing side of a pulse page: what the trainer tells by storing a few words, without a call to anybody.

Time is split by what the rank does: own work, waiting for others, waiting for data, saving, and long sections. The
split is what makes a straggler visible in a job whose ranks all take equally long for a step, because they wait for
the slowest.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import threading
import time
from typing import Any

from lmr.integrations.scout.page import (
    GROUP_AT,
    GROUP_WORDS,
    GROUPS_MOST,
    PAGE_BYTES,
    RING_AT,
    RING_ENTRIES,
    RING_WORDS,
    STEP_ENTRIES,
    STEPS_AT,
    TEXT_AT,
    TEXT_LENGTH_AT,
    Phase,
    Word,
)

_EXACT = (1 << 53) - 1
_now = time.monotonic_ns
_W = {word.name: int(word) for word in Word}
_VERSION, _BEATS, _PHASE, _SINCE, _WAITING = (
    _W["VERSION"],
    _W["BEATS"],
    _W["PHASE"],
    _W["SINCE_NS"],
    _W["WAITING"],
)
_BUCKET = {
    Phase.IDLE: _W["OWN_NS"],
    Phase.DATA: _W["DATA_NS"],
    Phase.FORWARD: _W["OWN_NS"],
    Phase.BACKWARD: _W["OWN_NS"],
    Phase.REDUCE: _W["WAITED_NS"],
    Phase.OPTIMIZER: _W["OWN_NS"],
    Phase.EVAL: _W["LONG_NS"],
    Phase.CHECKPOINT: _W["SAVE_NS"],
    Phase.COMPILE: _W["LONG_NS"],
    Phase.DECLARED: _W["LONG_NS"],
}
_BUCKET_OF = [_BUCKET[Phase(number)] for number in range(len(Phase))]


def stable_hash(*parts: Any) -> int:
    """The same number for the same parts on every rank; below 2^53 and never 0."""
    text = "\0".join(map(str, parts)).encode()
    return (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") & _EXACT) or 1


class Pulse:
    """Tells what this rank is doing.

    Phases are told by the thread that made this object only; collectives of other threads are counted, and nothing
    more. A process that is forked off says nothing.

    Args:
        memory: a page of `page.create`.
        step: optimizer steps completed before.
    """

    def __init__(self, memory: mmap.mmap, step: int) -> None:
        self._memory = memory
        self._words = memoryview(memory).cast("q")
        self._words[Word.STEP] = step
        self._thread = threading.get_ident()
        self._groups: dict[str, int] = {}
        self._about: dict[str, dict[str, Any]] = {"groups": {}, "calls": {}}
        self._step_ns = _now()
        self._off_path_ns = 0
        self._phase = 0
        self._since = self._step_ns
        self._waiting = False
        self._nonfinite = False
        self.live = True
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.live = False

    # Phases ----------------------------------------------------------------------------------------------------------

    def enter(self, phase: int) -> int:
        """From here on the rank is in `phase`; returns the phase it was in."""
        before = self._phase
        if self.live and threading.get_ident() == self._thread:
            words, now = self._words, _now()
            version = words[_VERSION]
            words[_VERSION] = version + 1
            words[_BUCKET_OF[before]] += now - self._since
            words[_PHASE] = self._phase = phase
            words[_SINCE] = self._since = now
            words[_BEATS] += 1
            words[_VERSION] = version + 2
        return before

    def reducing(self) -> None:
        """The last gradient is there: what is left of the backward pass is waiting for the others."""
        if self._phase == Phase.BACKWARD and self.live:
            # The gradient's hook may run on a thread of the autograd engine while this rank's own thread waits for it.
            words, now = self._words, _now()
            version = words[_VERSION]
            words[_VERSION] = version + 1
            words[_W["OWN_NS"]] += now - self._since
            words[_PHASE] = self._phase = 4
            words[_SINCE] = self._since = now
            words[_BEATS] += 1
            words[_VERSION] = version + 2

    def backward_done(self) -> None:
        """A backward pass is complete."""
        if self.live and threading.get_ident() == self._thread:
            self._words[Word.MICRO] += 1
            self.enter(0)

    def iterating(self) -> None:
        """A loader begins anew: its first batch may take longer than those that follow."""
        if self.live and threading.get_ident() == self._thread:
            self._words[Word.FRESH] = 1

    def got_batch(self, phase: int) -> None:
        """A batch is there; the rank goes on in `phase`."""
        if self.live and threading.get_ident() == self._thread:
            words = self._words
            waited, batches = _now() - self._since, words[Word.BATCHES]
            # First batches include the start of worker processes and cold caches; so does a process's second.
            if batches == 0:
                self._step_ns = self._since  # the first step begins here, and not where the process did
            longest = Word.LONGEST_FIRST_NS if words[Word.FRESH] else Word.LONGEST_DATA_NS
            if (longest == Word.LONGEST_FIRST_NS or batches >= 2) and waited > words[longest]:
                words[longest] = waited
            words[Word.FRESH] = 0
            words[Word.BATCHES] = batches + 1
            self.enter(phase)

    @property
    def has_batches(self) -> bool:
        """Whether a loader has given anything."""
        return self._words[Word.BATCHES] > 0

    def saved(self, phase: int) -> None:
        """A save is complete; the rank goes on in `phase`."""
        if self.live and threading.get_ident() == self._thread:
            waited = _now() - self._since
            if waited > self._words[Word.LONGEST_SAVE_NS]:
                self._words[Word.LONGEST_SAVE_NS] = waited
            self.enter(phase)

    # Steps -----------------------------------------------------------------------------------------------------------

    def stepped(self) -> None:
        """An optimizer step is complete."""
        if not self.live or threading.get_ident() != self._thread:
            return
        words = self._words
        self.enter(0)
        off_path = words[_W["LONG_NS"]] + words[_W["SAVE_NS"]]
        here, now = words[Word.STEPS_HERE], self._since
        number = words[Word.STEP_NEXT]
        taken = max(1, now - self._step_ns - (off_path - self._off_path_ns))
        words[STEPS_AT + number % STEP_ENTRIES] = taken
        if here > 0:  # the first step holds warm-up: it counts only until there is a second
            words[Word.STEP_NEXT] = number + 1
        self._step_ns, self._off_path_ns = now, off_path
        version = words[_VERSION]
        words[_VERSION] = version + 1
        if self._nonfinite and words[Word.NONFINITE_STEP] < 0:
            words[Word.NONFINITE_STEP] = words[Word.STEP] + 1
        self._nonfinite = False
        words[Word.STEP] += 1
        words[Word.STEPS_HERE] = here + 1
        words[Word.MICRO] = 0
        words[_W["STEP_DONE_NS"]] = now
        words[_VERSION] = version + 2

    def not_finite(self) -> None:
        """The loss or gradient norm of the present step is not finite; counts once the step is taken with it."""
        self._nonfinite = True

    def state_checked(self, step: int, *, damaged: bool) -> None:
        """The state that step left was looked at again before the next step wrote to it.

        Args:
            step: optimizer steps completed.
            damaged: it is not what the step left.
        """
        if self.live:
            if damaged:  # first, so that no reader takes a damaged step for a sound one
                self._words[Word.DAMAGED_STEP] = step
            self._words[Word.CHECKED_STEP] = step

    def strayed(self) -> None:
        """A loader gives another batch than its sampler prescribes; the first step with such a batch is kept."""
        if self.live and threading.get_ident() == self._thread and self._words[Word.STRAYED_STEP] < 0:
            self._words[Word.STRAYED_STEP] = self._words[Word.STEP] + 1

    def role(self, *parts: Any) -> None:
        """What this rank computes: ranks of one role are expected to be equally fast."""
        if self.live:
            self._words[Word.ROLE] = stable_hash(*parts)

    # Collectives -----------------------------------------------------------------------------------------------------

    def place_of(self, name: str) -> int | None:
        """The place of a process group that has been added."""
        return self._groups.get(name)

    def add_group(self, name: str, ranks: list[int] | None) -> int | None:
        """The place of a new process group in the page; None when there is no more room.

        Args:
            name: what all its members call it.
            ranks: its members; None for all.
        """
        number = self._words[Word.GROUPS]
        if number >= GROUPS_MOST:
            return None
        at = GROUP_AT + GROUP_WORDS * number
        identity = stable_hash(name, "all" if ranks is None else ",".join(map(str, ranks)))
        self._words[at] = identity
        self._words[Word.GROUPS] = number + 1
        self._groups[name] = at
        self._about["groups"][str(identity)] = {"name": name, "ranks": ranks}
        self._write_about()
        return at

    def describe(self, fingerprint: int, call: str) -> None:
        """What a fingerprint stands for."""
        if len(self._about["calls"]) < 256:
            self._about["calls"][str(fingerprint)] = call
            self._write_about()

    def _write_about(self) -> None:
        body = json.dumps(self._about, separators=(",", ":")).encode()
        if self.live and len(body) <= PAGE_BYTES - TEXT_AT:
            words = self._words
            version = words[_VERSION]
            words[_VERSION] = version + 1
            self._memory[TEXT_AT : TEXT_AT + len(body)] = body
            words[TEXT_LENGTH_AT] = len(body)
            words[_VERSION] = version + 2

    def entered(self, at: int, fingerprint: int) -> int:
        """The rank calls a collective of the group at `at`; returns its sequence number, for `done`."""
        if not self.live:
            return 0
        words = self._words
        mine = threading.get_ident() == self._thread
        version = words[_VERSION]
        words[_VERSION] = version + 1
        sequence = words[at + 1] + 1
        words[at + 1] = sequence
        words[at + 2] = fingerprint
        number = words[_W["RING_NEXT"]]
        entry = RING_AT + RING_WORDS * (number % RING_ENTRIES)
        words[entry], words[entry + 1], words[entry + 2] = words[at], sequence, fingerprint
        words[_W["RING_NEXT"]] = number + 1
        if mine:
            self._begin_waiting(at)
        words[_VERSION] = version + 2
        return sequence

    def done(self, at: int, sequence: int) -> None:
        """The call has returned."""
        if not self.live:
            return
        words = self._words
        mine = self._waiting and threading.get_ident() == self._thread
        version = words[_VERSION]
        words[_VERSION] = version + 1
        if mine:
            waited = self._end_waiting()
            words[at + 4] += waited
        words[at + 5] += 1
        words[at + 3] = max(words[at + 3], sequence)
        words[_VERSION] = version + 2

    def wait_began(self) -> bool:
        """The rank waits for something issued before; whether `wait_ended` must be called."""
        if not self.live or self._waiting or threading.get_ident() != self._thread:
            return False
        version = self._words[_VERSION]
        self._words[_VERSION] = version + 1
        self._begin_waiting(0)
        self._words[_VERSION] = version + 2
        return True

    def wait_ended(self) -> None:
        """It is there."""
        version = self._words[_VERSION]
        self._words[_VERSION] = version + 1
        self._end_waiting()
        self._words[_VERSION] = version + 2

    def _begin_waiting(self, at: int) -> None:
        words, now = self._words, _now()
        words[_BUCKET_OF[self._phase]] += now - self._since
        words[_SINCE] = self._since = now
        words[_WAITING] = 1
        words[_W["ENTERED_GROUP"]] = words[at] if at else 0
        words[_BEATS] += 1
        self._waiting = True

    def _end_waiting(self) -> int:
        words, now = self._words, _now()
        waited = now - self._since
        # Waiting inside an evaluation or a save stays part of it.
        words[_BUCKET_OF[self._phase] if self._phase >= 6 else _W["WAITED_NS"]] += waited
        words[_SINCE] = self._since = now
        words[_WAITING] = 0
        words[_BEATS] += 1
        self._waiting = False
        return waited
