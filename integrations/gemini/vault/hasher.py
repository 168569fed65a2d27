"""Computes digests on a thread of its own, newest rolling capture first to be given up."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from lmr.integrations.gemini.digest import ShardDigest
from lmr.integrations.gemini.vault.copies import Copy

_MAX_THREADS = 8
"""More would wait for memory."""

Done = Callable[[Copy, dict[int, ShardDigest], str], None]
"""Called on the loop's thread."""


def cores() -> int:
    """How many threads may read state while nobody trains."""
    return min(_MAX_THREADS, len(os.sched_getaffinity(0)))


class Hasher:
    """One worker; jobs that nobody waits for are replaced by newer ones instead of queueing up.

    Args:
        post: runs a callable on the loop's thread.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        self._post = post
        self._wanted: deque[tuple[Copy, Done, int]] = deque()
        self._rolling: tuple[Copy, Done] | None = None
        self._change = threading.Condition()
        threading.Thread(target=self._work, name="hasher", daemon=True).start()

    def measure(self, copy: Copy, done: Done, *, idle_cores: bool = False) -> None:
        """Digest `copy` for certain, in turn.

        Args:
            copy: to read.
            done: called with its digests.
            idle_cores: nobody trains, so more than one core may be used.
        """
        self._take(copy)
        threads = cores() if idle_cores else 1
        with self._change:
            self._wanted.append((copy, done, threads))
            self._change.notify()

    def measure_if_idle(self, copy: Copy, done: Done) -> None:
        """Digest `copy` unless a newer one comes before its turn."""
        self._take(copy)
        with self._change:
            passed_over, self._rolling = self._rolling, (copy, done)
            self._change.notify()
        if passed_over is not None:
            self._give_back(passed_over[0])

    def hurry(self, copy: Copy) -> None:
        """A rolling capture has become wanted: it must not be passed over any more."""
        with self._change:
            if self._rolling is not None and self._rolling[0] is copy:
                self._wanted.append((*self._rolling, 1))
                self._rolling = None

    @staticmethod
    def _take(copy: Copy) -> None:
        copy.hashing = True
        copy.hold()

    @staticmethod
    def _give_back(copy: Copy) -> None:
        copy.hashing = False
        copy.let_go()

    def _work(self) -> None:
        import numpy  # noqa: F401  now, rather than while a restore waits for its first check

        while True:
            with self._change:
                while not self._wanted and self._rolling is None:
                    self._change.wait()
                if self._wanted:
                    copy, done, threads = self._wanted.popleft()
                else:
                    assert self._rolling is not None
                    (copy, done), self._rolling, threads = self._rolling, None, 1
            digests, slot_digest = copy.measure(threads)
            self._post(lambda c=copy, d=done, f=digests, s=slot_digest: self._finish(c, d, f, s))  # type: ignore[misc]

    def _finish(self, copy: Copy, done: Done, digests: dict[int, ShardDigest], slot_digest: str) -> None:
        self._give_back(copy)
        done(copy, digests, slot_digest)
