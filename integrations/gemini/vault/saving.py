"""Saves what a node holds before the node ends: to disk, and into the memory of peers.

First the newest step that every node keeps, then what was captured since, newest first: time may run out at any moment,
and a step counts only when all slots have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.gemini.vault.room import Room

Deliver = Callable[[Copy, Callable[[], None]], None]
"""Replicates a copy; the callable is called once every peer has it or never will."""


class Saver:
    """One save at a time; a second wish while one is going waits for its end. Runs on the reactor's thread.

    Args:
        room: the copies.
        deliver: replicates one of them.
    """

    def __init__(self, room: Room, deliver: Deliver) -> None:
        self._room = room
        self._deliver = deliver
        self._open = 0
        self._done: list[Callable[[dict[str, Any]], None]] = []

    def save(self, done: Callable[[dict[str, Any]], None]) -> None:
        """Publish every capture that is complete, write each to disk if there is one, and replicate it.

        Args:
            done: called with the steps of this node's slot that are on its disk and in its memory.
        """
        self._done.append(done)
        if len(self._done) == 1:
            self._room.flush(self._start)

    def _start(self) -> None:
        copies = self._room.own_published()
        kept = [copy for copy in copies if self._room.is_retained(copy)]
        self._open = 1
        for copy in [*kept[:1], *(copy for copy in copies if copy not in kept[:1])]:
            self._open += 2
            self._deliver(copy, self._end_one)
            if not self._room.save_to_disk(copy, self._end_one):
                self._end_one()
        self._end_one()

    def _end_one(self) -> None:
        self._open -= 1
        if self._open:
            return
        done, self._done = self._done, []
        disk = self._room.disk
        on_disk = {key[1] for key in disk.copies if key[2] == self._room.slot} if disk is not None else set()
        told = {"disk": sorted(on_disk), "memory": sorted(copy.step for copy in self._room.own_published())}
        for call in done:
            call(told)
