"""A copy that is on its way here: which chunks are there already, wherever they came from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from lmr.integrations.gemini import digest
from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.gemini.vault.memory import Buffer
from lmr.integrations.gemini.vault.transfer import CopyHeader, Need, parse_need
from lmr.integrations.wire import Channel


class Filling:
    """Buffers that fill chunk by chunk. A broken connection leaves what it brought; the next one goes on from there.

    Used by one thread at a time; `claim` lets a new connection take it from one that has not noticed its end yet.

    Args:
        header: what is to arrive.
        buffers: where, by rank.
    """

    def __init__(self, header: CopyHeader, buffers: dict[int, Buffer]) -> None:
        self.header = header
        self.buffers = buffers
        self._spans = {rank: digest.chunk_spans(meta) for rank, (meta, _, _) in header.shards.items()}
        self._have = {rank: bytearray(len(spans)) for rank, spans in self._spans.items()}
        self._owner = object()

    def claim(self) -> object:
        """Become the one that fills; whoever did before is refused from here on."""
        self._owner = object()
        return self._owner

    @property
    def complete(self) -> bool:
        """Every chunk is here and was checked."""
        return all(all(have) for have in self._have.values())

    def need(self) -> Need:
        """The chunks that are not here."""
        found: Need = {}
        for rank, have in self._have.items():
            ranges: list[list[int]] = []
            for number, there in enumerate(have):
                if there:
                    continue
                if ranges and ranges[-1][1] == number:
                    ranges[-1][1] = number + 1
                else:
                    ranges.append([number, number + 1])
            if ranges:
                found[str(rank)] = ranges
        return found

    def share(self, other: Copy) -> None:
        """Show the chunks that another copy has at the same place of any of its shards, without taking memory for them.

        On the loop's thread, which counts who needs which memory.
        """
        for rank, have in self._have.items():
            wanted = self.header.shards[rank][1].chunks
            for shard in other.shards.values():
                theirs = shard.digest.chunks if shard.digest is not None else ()
                spans = digest.chunk_spans(shard.meta)
                equal = [n for n, (a, b) in enumerate(zip(wanted, theirs, strict=False)) if a == b and not have[n]]
                for first, last in _runs(equal):
                    start, end = self._spans[rank][first][0], self._spans[rank][last][1]
                    if end - start == spans[last][1] - spans[first][0] and self.buffers[rank].overlay(
                        start, end, shard.buffer, spans[first][0]
                    ):
                        have[first : last + 1] = b"\1" * (last + 1 - first)

    def reserve(self) -> None:
        """Take memory for all that is not here yet.

        Raises:
            OSError: there is not enough.
        """
        for rank, stretches in parse_need(self.need(), self.header).items():
            for start, end in stretches:
                self.buffers[rank].reserve(start, end)

    def take_equal(self, other: Copy) -> None:
        """Copy the chunks that another copy, held by the caller, has at the same place of any of its shards."""
        for rank, have in self._have.items():
            wanted = self.header.shards[rank][1].chunks
            for shard in other.shards.values():
                if shard.digest is None:
                    continue
                spans = digest.chunk_spans(shard.meta)
                for number, (mine, theirs) in enumerate(zip(wanted, shard.digest.chunks, strict=False)):
                    if not have[number] and mine == theirs:
                        start, end = self._spans[rank][number]
                        source = shard.buffer.memory[slice(*spans[number])]
                        self.buffers[rank].memory[start:end] = source
                        # Memory may have been damaged since it was measured.
                        have[number] = digest.of_chunk(self.buffers[rank].memory[start:end]) == mine

    def receive(self, channel: Channel, need: Need, owner: object) -> None:
        """Take in what was asked for; a chunk that arrives damaged stays missing.

        Chunks are checked on a thread of their own while the next ones arrive; all checks are over at the return.

        Raises:
            OSError: the connection broke, or another one has taken over.
        """
        with ThreadPoolExecutor(1, "check") as checks:
            for rank, stretches in parse_need(need, self.header).items():
                memory = self.buffers[rank].memory
                numbers = iter([number for first, end in need.get(str(rank), []) for number in range(first, end)])
                waiting = next(numbers, None)
                for start, end in stretches:
                    at = start
                    while at < end:
                        at += channel.recv_unsealed_into(memory[at:end])
                        if self._owner is not owner:
                            raise ConnectionAbortedError("another connection goes on with this transfer")
                        while waiting is not None and self._spans[rank][waiting][1] <= at:
                            checks.submit(self._check, rank, waiting)
                            waiting = next(numbers, None)

    def _check(self, rank: int, number: int) -> None:
        """Count a chunk as here; never as missing again, since another connection may have brought it meanwhile."""
        start, end = self._spans[rank][number]
        if digest.of_chunk(self.buffers[rank].memory[start:end]) == self.header.shards[rank][1].chunks[number]:
            self._have[rank][number] = True


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of neighbours."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found
