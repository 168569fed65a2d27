"""The pulse page: one rank's state of progress, in memory that others can read while the rank cannot speak.

The page is a memfd of the trainer. The node's agent opens it by `/proc/PID/fd/N` and maps it read-only; no file is left
behind, and a trainer that is blocked or stopped is read like any other. Every number is an aligned 64-bit word,
written by one store. Words that belong together are written between two increments of `VERSION`; a reader that finds
it odd or changed looks again, and takes what there is when the writer stopped halfway.

    words 0..63    one number each, see `Word`
    words 64..     32 groups of 8 words: id, entered, entered fingerprint, done, time waited, calls
    words 512..    ring of the newest 64 collectives: group id, sequence, fingerprint, -
    words 1024..   ring of the newest 32 step times in nanoseconds
    byte 16384..   text: names and members of the groups, and what each fingerprint stands for, as JSON
"""

from __future__ import annotations

import enum
import json
import mmap
import os
import time
from dataclasses import dataclass, field
from typing import Any

PAGE_BYTES = 65_536
LAYOUT = 2
GROUPS_MOST = 32
GROUP_AT, GROUP_WORDS = 64, 8
RING_AT, RING_ENTRIES, RING_WORDS = 512, 64, 4
STEPS_AT, STEP_ENTRIES = 1024, 32
TEXT_LENGTH_AT = 2040
TEXT_AT = 16_384
_TRIES = 20


class Phase(enum.IntEnum):
    """What a rank is doing, in the order of a step. What comes after `OPTIMIZER` is off the step's path."""

    IDLE = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    REDUCE = 4
    OPTIMIZER = 5
    EVAL = 6
    CHECKPOINT = 7
    COMPILE = 8
    DECLARED = 9

    @property
    def is_long(self) -> bool:
        """Whether minutes in it are no sign of a fault."""
        return self >= Phase.EVAL


class Word(enum.IntEnum):
    """Places of the numbers."""

    LAYOUT = 0
    PID = 1
    RANK = 2
    GENERATION = 3
    VERSION = 4
    BEATS = 5
    STEP = 6
    STEPS_HERE = 7
    MICRO = 8
    PHASE = 9
    SINCE_NS = 10
    WAITING = 11
    GROUPS = 12
    RING_NEXT = 13
    STEP_NEXT = 14
    NONFINITE_STEP = 15
    ROLE = 16
    LONGEST_DATA_NS = 17
    LONGEST_SAVE_NS = 18
    OWN_NS = 19
    WAITED_NS = 20
    DATA_NS = 21
    SAVE_NS = 22
    LONG_NS = 23
    BATCHES = 24
    ENTERED_GROUP = 25
    STEP_DONE_NS = 26
    CHECKED_STEP = 27
    DAMAGED_STEP = 28
    STRAYED_STEP = 29
    FRESH = 30
    LONGEST_FIRST_NS = 31


@dataclass(frozen=True)
class GroupReading:
    """One process group as a rank sees it."""

    id: int
    entered: int
    fingerprint: int
    done: int
    waited_ns: int
    calls: int


@dataclass(frozen=True)
class Reading:
    """A page at one moment. Times are of `CLOCK_MONOTONIC`, which every process of the machine shares."""

    pid: int
    rank: int
    generation: int
    beats: int
    step: int | None
    steps_here: int
    micro: int
    phase: Phase
    since_ns: int
    waiting: bool
    waiting_group: int
    nonfinite_step: int | None
    role: int
    longest_data_ns: int
    longest_save_ns: int
    own_ns: int
    waited_ns: int
    data_ns: int
    save_ns: int
    long_ns: int
    batches: int
    checked_step: int | None = None
    damaged_step: int | None = None
    strayed_step: int | None = None
    fresh: bool = False
    """The iteration has not given its first batch."""
    longest_first_ns: int = 0
    """The longest wait for the first batch of an iteration."""
    groups: tuple[GroupReading, ...] = ()
    recent: tuple[tuple[int, int, int], ...] = ()
    step_times_ns: tuple[int, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    """`groups`: name and members by id; `calls`: what a fingerprint stands for."""
    torn: bool = False
    """The writer stopped halfway through a change; single numbers are right, not all of them are of one moment."""


def create(rank: int, generation: int) -> tuple[int, mmap.mmap]:
    """A new page.

    Returns:
        The descriptor it can be opened by, and the page.
    """
    fd = os.memfd_create("lmr-pulse", os.MFD_CLOEXEC)
    os.ftruncate(fd, PAGE_BYTES)
    memory = mmap.mmap(fd, PAGE_BYTES)
    words = memoryview(memory).cast("q")
    words[Word.PID] = os.getpid()
    words[Word.RANK] = rank
    words[Word.GENERATION] = generation
    words[Word.STEP] = -1
    words[Word.NONFINITE_STEP] = -1
    words[Word.CHECKED_STEP] = words[Word.DAMAGED_STEP] = words[Word.STRAYED_STEP] = -1
    words[Word.SINCE_NS] = words[Word.STEP_DONE_NS] = time.monotonic_ns()
    words[Word.LAYOUT] = LAYOUT
    words.release()
    return fd, memory


class PulseReader:
    """Reads another process's page.

    Args:
        pid: the process.
        fd: its descriptor of the page.

    Raises:
        OSError: the process is gone, or its descriptor is something else.
    """

    def __init__(self, pid: int, fd: int) -> None:
        opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(opened).st_size != PAGE_BYTES:
                raise OSError(f"descriptor {fd} of process {pid} is no pulse page")
            self._memory = mmap.mmap(opened, PAGE_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(opened)
        self._words = memoryview(self._memory).cast("q")
        if self._words[Word.LAYOUT] != LAYOUT:
            self.close()
            raise OSError(f"the pulse page of process {pid} has another layout")

    def read(self) -> Reading:
        """The page now."""
        for _ in range(_TRIES):
            before = self._words[Word.VERSION]
            if before % 2 == 0:
                reading = self._take(torn=False)
                if self._words[Word.VERSION] == before:
                    return reading
            time.sleep(0)
        return self._take(torn=True)

    @property
    def checked_step(self) -> int:
        """Newest step whose state was looked at again; -1 before the first."""
        return self._words[Word.CHECKED_STEP]

    def _take(self, *, torn: bool) -> Reading:
        w = self._words[:2048].tolist()
        return Reading(
            pid=w[Word.PID],
            rank=w[Word.RANK],
            generation=w[Word.GENERATION],
            beats=w[Word.BEATS],
            step=_known(w[Word.STEP]),
            steps_here=w[Word.STEPS_HERE],
            micro=w[Word.MICRO],
            phase=Phase(w[Word.PHASE]),
            since_ns=w[Word.SINCE_NS],
            waiting=bool(w[Word.WAITING]),
            waiting_group=w[Word.ENTERED_GROUP],
            nonfinite_step=_known(w[Word.NONFINITE_STEP]),
            role=w[Word.ROLE],
            longest_data_ns=w[Word.LONGEST_DATA_NS],
            longest_save_ns=w[Word.LONGEST_SAVE_NS],
            own_ns=w[Word.OWN_NS],
            waited_ns=w[Word.WAITED_NS],
            data_ns=w[Word.DATA_NS],
            save_ns=w[Word.SAVE_NS],
            long_ns=w[Word.LONG_NS],
            batches=w[Word.BATCHES],
            checked_step=_known(w[Word.CHECKED_STEP]),
            damaged_step=_known(w[Word.DAMAGED_STEP]),
            strayed_step=_known(w[Word.STRAYED_STEP]),
            fresh=bool(w[Word.FRESH]),
            longest_first_ns=w[Word.LONGEST_FIRST_NS],
            groups=_groups(w),
            recent=_recent(w),
            step_times_ns=tuple(t for t in w[STEPS_AT : STEPS_AT + STEP_ENTRIES] if t > 0),
            about=self._about(w[TEXT_LENGTH_AT]),
            torn=torn,
        )

    def _about(self, length: int) -> dict[str, Any]:
        if not 0 < length <= PAGE_BYTES - TEXT_AT:
            return {}
        try:
            found = json.loads(self._memory[TEXT_AT : TEXT_AT + length])
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def close(self) -> None:
        """Unmap the page."""
        self._words.release()
        self._memory.close()


def _known(step: int) -> int | None:
    return None if step < 0 else step


def _groups(w: list[int]) -> tuple[GroupReading, ...]:
    starts = range(GROUP_AT, GROUP_AT + GROUP_WORDS * min(w[Word.GROUPS], GROUPS_MOST), GROUP_WORDS)
    return tuple(GroupReading(*w[at : at + 6]) for at in starts)


def _recent(w: list[int]) -> tuple[tuple[int, int, int], ...]:
    """Newest last."""
    following = w[Word.RING_NEXT]
    found = []
    for number in range(max(0, following - RING_ENTRIES), following):
        at = RING_AT + RING_WORDS * (number % RING_ENTRIES)
        found.append((w[at], w[at + 1], w[at + 2]))
    return tuple(found)
