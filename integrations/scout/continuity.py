"""Continuity: what an optimizer step left is what the next one finds. Watched inside the trainer, without any peer.

    boundary after step 41          first optimizer hook of step 42
    digest of a slice   - - - - - - digest of the same slice: equal, or memory changed while nobody wrote to it

Between the two only the forward and backward pass run, which read parameters and optimizer state. A write of the script
in between counts one up in the tensor's `_version` and excuses it; one behind torch's back (`.data`, numpy) does not,
so a piece of state must first have proved that it stays as it is. Each step looks at another slice, so that the cost
is bounded however large the state is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from lmr.integrations.gemini.capture import local
from lmr.integrations.scout.piece import Content, Piece
from lmr.integrations.scout.pulse import Pulse

FLOOR_BYTES = 1024 * 1024
"""Looked at in each step whatever it takes: small models as a whole."""
PIECE_BYTES = 256 * 1024
LIST_AGAIN_STEPS = 16
"""Steps after which the state's tensors are listed again, at the end of a round: optimizers may replace them."""

Named = tuple[tuple[Any, ...], torch.Tensor]


@dataclass(frozen=True)
class _Noted:
    piece: Piece
    place: tuple[int, int]
    content: Content


class Continuity:
    """Watches the state of one rank.

    Args:
        settings: the table `[replay.continuity]`.
        pulse: where the result is told.
        live: names and tensors of everything optimizers own.
        degraded: called with what is not watched, and why.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        pulse: Pulse,
        live: Callable[[], Iterable[Named]],
        degraded: Callable[[str, str], None],
    ) -> None:
        self._most_bytes = int(settings["slice_bytes"])
        self._piece_bytes = min(PIECE_BYTES, self._most_bytes)
        self._cost = int(settings["cost_permille"]) / 1000
        self.slice_bytes = min(FLOOR_BYTES, self._most_bytes)
        self._slice_tensors = int(settings["slice_tensors"])
        self._proving_checks = int(settings["proving_checks"])
        self._pulse = pulse
        self._live = live
        self._degraded = degraded
        self._pieces: list[Piece] = []
        self._next = 0
        self._listed_ago = LIST_AGAIN_STEPS
        self._step = -1
        self._due = False
        self._boundary_ns = time.perf_counter_ns()
        self._took_ns = 0
        self._slice_has = 0
        self._noted: list[_Noted] = []
        self._coming: list[tuple[int, list[_Noted], Any, torch.Tensor]] = []

    def at_boundary(self, step: int) -> None:
        """A step is complete and nothing writes until the next: note the next slice.

        Args:
            step: optimizer steps completed.
        """
        begun_ns = time.perf_counter_ns()
        self._arrivals()
        self._fit(begun_ns - self._boundary_ns)
        self._boundary_ns = begun_ns
        self._step = step
        self._due = True
        self._noted = [noted for piece in self._slice() if (noted := _note(piece)) is not None]
        self._took_ns = time.perf_counter_ns() - begun_ns

    def before_write(self) -> None:
        """An optimizer is about to write: the slice must be as it was noted."""
        if not self._due:
            return
        self._due = False
        begun_ns = time.perf_counter_ns()
        noted, self._noted = self._noted, []
        now = [(one, content) for one in noted if (content := _look_again(one)) is not None]
        here = [(one, content) for one, content in now if isinstance(content, int)]
        there = [(one, content) for one, content in now if isinstance(content, torch.Tensor)]
        if here:
            self._judge(self._step, [one for one, _ in here], [bool(one.content != content) for one, content in here])
        if there:
            self._compare_later(there)
        if not now:  # nothing that could be looked at: nobody needs to wait for word of it
            self._pulse.state_checked(self._step, damaged=False)
        self._took_ns += time.perf_counter_ns() - begun_ns

    def _fit(self, step_ns: int) -> None:
        """Let the slice be what the last step's time allows, at the speed of the last looks; never twice as large."""
        if self._took_ns > 0 and self._slice_has > 0:
            allowed = int(self._cost * step_ns * self._slice_has / self._took_ns)
            least = min(FLOOR_BYTES, self._most_bytes)
            self.slice_bytes = max(least, min(allowed, 2 * self.slice_bytes, self._most_bytes))

    # Accelerators ----------------------------------------------------------------------------------------------------

    def _compare_later(self, looked: list[tuple[_Noted, torch.Tensor]]) -> None:
        """Compared where the state is; the answer is read once it has come, without waiting for the device."""
        before = torch.stack([one.content for one, _ in looked if isinstance(one.content, torch.Tensor)])
        differs = (before != torch.stack([content for _, content in looked])).any(dim=1)
        answer = differs.to("cpu", non_blocking=True)
        event = torch.Event(differs.device.type) if differs.device.type != "cpu" else None
        if event is not None:
            event.record()
        self._coming.append((self._step, [one for one, _ in looked], event, answer))

    def _arrivals(self) -> None:
        while self._coming and (self._coming[0][2] is None or self._coming[0][2].query()):
            step, noted, _, answer = self._coming.pop(0)
            self._judge(step, noted, answer.tolist())

    # Judging ---------------------------------------------------------------------------------------------------------

    def _judge(self, step: int, noted: list[_Noted], differs: list[bool]) -> None:
        damaged = False
        for one, changed in zip(noted, differs, strict=True):
            piece = one.piece
            if not changed:
                piece.proofs += 1
                continue
            if piece.proofs >= self._proving_checks:
                damaged = True
            else:
                self._degraded("continuity", f"{piece.name} is written behind torch's back: not watched")
            piece.excluded = True
        self._pulse.state_checked(step, damaged=damaged)

    # Slices ----------------------------------------------------------------------------------------------------------

    def _slice(self) -> list[Piece]:
        self._listed_ago += 1
        if self._next >= len(self._pieces):
            self._next = 0
            if self._listed_ago >= LIST_AGAIN_STEPS:
                self._list()
        chosen: list[Piece] = []
        room = self.slice_bytes
        while self._next < len(self._pieces) and len(chosen) < self._slice_tensors:
            piece = self._pieces[self._next]
            if chosen and piece.nbytes > room:
                break
            self._next += 1
            if not piece.excluded:
                chosen.append(piece)
                room -= piece.nbytes
        self._slice_has = self.slice_bytes - room
        return chosen

    def _list(self) -> None:
        known = {(piece.name, piece.begin, piece.end): piece for piece in self._pieces}
        pieces = []
        for name, tensor in self._live():
            part = local(tensor)
            size = part.numel() * part.element_size()
            for begin in range(0, size, self._piece_bytes):
                end = min(size, begin + self._piece_bytes)
                piece = known.get((name, begin, end))
                if piece is None or piece.tensor() is not part:
                    piece = Piece(name, part, begin, end)
                pieces.append(piece)
        self._pieces, self._listed_ago = pieces, 0


def _note(piece: Piece) -> _Noted | None:
    place = piece.place()
    return None if place is None else _Noted(piece, place, piece.read())


def _look_again(noted: _Noted) -> Content | None:
    """The content now; None where the script wrote, or put the tensor elsewhere."""
    return noted.piece.read() if noted.piece.place() == noted.place else None
