"""Parameters nobody trains: what a buffer already holds of them is not copied again.

A buffer keeps its content when it is granted again. So once the frozen part has been written to it, it is there. That
is believed only while the traces of the tensors are what they were then, and a slice of the part is compared byte by
byte at every capture, so that each byte is looked at from time to time.
"""

from __future__ import annotations

import torch

from lmr.integrations.gemini.traces import Trace, Tracer

SLICE_BYTES = 256 * 1024
"""What is compared at one capture."""


class FrozenPart:
    """What each buffer holds of it."""

    def __init__(self) -> None:
        self._tracer = Tracer()
        self._written: dict[int, Trace] = {}
        self._next: dict[int, tuple[int, int]] = {}
        self.reused = 0
        self.betrayed = False
        """Whether a slice was found to differ: somebody writes without leaving a trace, and nothing is reused since."""

    def forget(self) -> None:
        """The buffers are laid out anew."""
        self._written.clear()
        self._next.clear()

    def is_there(
        self, number: int, places: list[torch.Tensor], tensors: list[torch.Tensor], owners: list[torch.Tensor]
    ) -> bool:
        """Whether the buffer holds these tensors already. If not, they are to be written now, and counted as there.

        Args:
            number: of the buffer.
            places: in the buffer.
            tensors: the frozen ones.
            owners: whom the script writes to.
        """
        if not tensors or self.betrayed:
            return False
        now = self._tracer.take(tensors, owners)
        before = self._written.pop(number, None)
        if now is None:
            return False
        self._written[number] = now
        if before is None or not before.same_as(now):
            return False
        if not self._slice_is_equal(number, places, tensors):
            self.betrayed = True
            self._written.clear()
            return False
        self.reused += 1
        return True

    def _slice_is_equal(self, number: int, places: list[torch.Tensor], tensors: list[torch.Tensor]) -> bool:
        i, at = self._next.get(number, (0, 0))
        place, tensor = places[i].view(-1), tensors[i].detach()
        if not tensor.is_contiguous() or tensor.device.type != "cpu":
            self._next[number] = ((i + 1) % len(tensors), 0)
            return True
        count = max(1, SLICE_BYTES // tensor.itemsize)
        end = at + count
        self._next[number] = (i, end) if end < place.numel() else ((i + 1) % len(tensors), 0)
        one, other = place[at:end], tensor.view(-1)[at:end]
        return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
