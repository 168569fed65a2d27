"""What a vault holds when a new agent comes: memory measured again, and what lies on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lmr.integrations.gemini.digest import ShardDigest
from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.gemini.vault.room import Room


def take_stock(room: Room, done: Callable[[list[dict[str, Any]]], None]) -> None:
    """Tell a new agent what is here: memory measured again, damaged copies dropped, and what lies on disk.

    Args:
        room: the copies.
        done: called with facts, as `{"kind", "data"}`; what is not on the list is not here.
    """
    waiting = {copy.key for copy in room.copies.values() if copy.complete}
    sound: list[Copy] = []

    def check(copy: Copy, digests: dict[int, ShardDigest], slot_digest: str) -> None:
        waiting.discard(copy.key)
        if copy.digest not in (None, slot_digest):
            room.drop(copy, "digest_mismatch")
        elif room.copies.get(copy.key) is copy:
            for rank, found in digests.items():
                copy.shards[rank].digest = found
            copy.digest, copy.published = slot_digest, True
            sound.append(copy)
        if not waiting:
            finish()

    def finish() -> None:
        stored = [on_disk.fact(room.node) for on_disk in room.disk.copies.values()] if room.disk else []
        done([room.fact_of(copy) for copy in sorted(sound, key=lambda copy: copy.key)] + stored)

    for copy in [room.copies[key] for key in sorted(waiting)]:
        room.measure(copy, check)
    if not waiting:
        finish()
