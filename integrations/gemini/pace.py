"""Whether the next capture is copied while the loop waits, or behind its back.

Behind its back costs a trace of every tensor and a thread; it pays where forward and backward are longer than the copy
and leave a core free. That is measured at every capture, and given up for a while where it does not pay, or where
somebody wrote to what was being copied.
"""

from __future__ import annotations

from typing import Literal

Mode = Literal["auto", "foreground", "background"]

LEAST_BYTES = 1024 * 1024
"""Less is copied before a thread has woken up."""
WORTH_IT = 0.5
"""The loop must wait for less than this share of what it would wait for a copy in the foreground."""
BAD_IN_A_ROW = 3
PAUSE_CAPTURES = 64
"""For how many captures the foreground is kept to before the other is tried again."""


class Pace:
    """Chooses for one trainer.

    Args:
        mode: `auto` measures; the others keep to their word, except that a torn copy is not risked again at once.
    """

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._foreground_s_per_byte: float | None = None
        self._bad = 0
        self._pause = 0

    def background(self, nbytes: int) -> bool:
        """Whether the next capture is copied in the background.

        Args:
            nbytes: of its tensors.
        """
        if self._pause > 0:
            self._pause -= 1
            return False
        if self._mode == "auto":
            return nbytes >= LEAST_BYTES and self._foreground_s_per_byte is not None
        return self._mode == "background"

    def was_foreground(self, nbytes: int, took_s: float) -> None:
        """A copy in the foreground is over. The fastest one counts: the first ones meet memory nobody has touched."""
        if nbytes:
            fastest = self._foreground_s_per_byte
            self._foreground_s_per_byte = took_s / nbytes if fastest is None else min(fastest, took_s / nbytes)

    def was_background(self, nbytes: int, waited_s: float, *, intact: bool) -> None:
        """A copy in the background is over.

        Args:
            nbytes: of its tensors.
            waited_s: how long the loop was held up, for its beginning and its end.
            intact: whether nobody wrote to what was being copied.
        """
        foreground_s = (self._foreground_s_per_byte or 0.0) * nbytes
        self._bad = self._bad + 1 if waited_s >= WORTH_IT * foreground_s else 0
        if not intact or (self._mode == "auto" and self._bad >= BAD_IN_A_ROW):
            self._bad, self._pause = 0, PAUSE_CAPTURES
