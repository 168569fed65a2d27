"""Copies between vaults over sealed TCP connections.

    client                                     server
    put {copy, digests}             ->
                                    <-         go {need} | have | refused {why}
    what is needed, as it is        ->
                                    <-         stored | refused {why}

    get {run, step, slot}           ->
                                    <-         copy {copy, digests} | refused {why}
    need {need}                     ->
                                    <-         what is needed, as it is

Digests are of chunks: who receives asks only for chunks it has nowhere, neither from an earlier, broken transfer of
this copy nor in another copy, and checks each chunk it gets. Every message is a sealed frame; the chunks between them
are authentic when they have the digests that came in one.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from lmr.integrations.gemini import digest
from lmr.integrations.gemini.digest import ShardDigest
from lmr.integrations.gemini.errors import ShardMismatch
from lmr.integrations.gemini.shard import ShardMeta
from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.wire import Channel


@dataclass(frozen=True)
class Peer:
    """Another node's vault."""

    node: str
    host: str
    port: int


@dataclass(frozen=True)
class CopyHeader:
    """What a copy is, sent before its bytes."""

    run: str
    generation: int
    step: int
    slot: int
    digest: str
    shards: dict[int, tuple[ShardMeta, ShardDigest, list[int] | None]]

    @property
    def total_bytes(self) -> int:
        """Bytes of all ranks."""
        return sum(meta.total_bytes for meta, _, _ in self.shards.values())

    @classmethod
    def of(cls, run: str, copy: Copy) -> CopyHeader:
        """The header of a measured copy."""
        shards = {}
        for rank, shard in copy.shards.items():
            assert shard.digest is not None
            shards[rank] = (shard.meta, shard.digest, shard.peers)
        assert copy.digest is not None
        return cls(run, copy.generation, copy.step, copy.slot, copy.digest, shards)

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        rows = [
            [meta.to_json(), found.to_json(), peers, "".join(found.chunks)]
            for _, (meta, found, peers) in sorted(self.shards.items())
        ]
        return {
            "run": self.run,
            "generation": self.generation,
            "step": self.step,
            "slot": self.slot,
            "digest": self.digest,
            "shards": rows,
        }

    @classmethod
    def parse(cls, body: Any) -> CopyHeader:
        """Read and check what came in.

        Raises:
            ShardMismatch: a field is missing or ill-typed, or the digests do not belong together.
        """
        try:
            shards = {}
            for row in body["shards"]:
                meta = ShardMeta.parse(row[0])
                chunks = [row[3][at : at + 32] for at in range(0, len(row[3]), 32)]
                found = digest.of_chunks(chunks, meta)
                if found != ShardDigest(str(row[1][0]), str(row[1][1])) or len(chunks) != len(digest.chunk_spans(meta)):
                    raise ShardMismatch("digest_mismatch", f"chunks of rank {meta.rank} contradict its digest")
                shards[meta.rank] = (meta, found, row[2])
            header = cls(
                str(body["run"]),
                int(body["generation"]),
                int(body["step"]),
                int(body["slot"]),
                str(body["digest"]),
                shards,
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ShardMismatch("topology_mismatch", f"a copy's header cannot be read: {error!r}") from None
        if digest.of_slot({rank: (meta, found) for rank, (meta, found, _) in shards.items()}) != header.digest:
            raise ShardMismatch("digest_mismatch", "a copy's header contradicts its own digest")
        return header


def connect(peer: Peer, secret: bytes, timeout_s: float) -> Channel:
    """A sealed connection to another vault; every read and write ends after `timeout_s` without a byte.

    Raises:
        OSError: it cannot be reached.
    """
    sock = socket.create_connection((peer.host, peer.port), timeout=timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return Channel(sock, secret, "client")
    except BaseException:
        sock.close()
        raise


Need = dict[str, list[list[int]]]
"""By rank (a string, as JSON has it): ranges of chunk numbers, each `[first, end]`, the end not included."""


def parse_need(body: Any, header: CopyHeader) -> dict[int, list[tuple[int, int]]]:
    """The stretches of each rank's shard that are asked for, in bytes, in the order they are to be sent.

    Raises:
        ShardMismatch: not ranges of this copy's chunks.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    try:
        for rank in sorted(header.shards):
            spans = digest.chunk_spans(header.shards[rank][0])
            ranges = [(int(first), int(end)) for first, end in body.get(str(rank), [])]
            if any(not 0 <= first < end <= len(spans) for first, end in ranges):
                raise ValueError(f"no such chunks of rank {rank}")
            found[rank] = [(spans[first][0], spans[end - 1][1]) for first, end in ranges]
    except (AttributeError, TypeError, ValueError) as error:
        raise ShardMismatch("topology_mismatch", f"what is needed cannot be read: {error!r}") from None
    return found


def send_memory(
    channel: Channel, memories: dict[int, memoryview], asked: dict[int, list[tuple[int, int]]], at_once_bytes: int
) -> None:
    """Send the stretches that are asked for."""
    for rank, stretches in asked.items():
        for start, end in stretches:
            for at in range(start, end, at_once_bytes):
                channel.send_unsealed(memories[rank][at : min(at + at_once_bytes, end)])


def verify(header: CopyHeader, memories: dict[int, memoryview]) -> None:
    """Check the bytes that arrived against the header.

    Raises:
        ShardMismatch: `digest_mismatch`, naming the rank.
    """
    for rank, (meta, expected, _) in header.shards.items():
        if digest.of_shard(memories[rank], meta) != expected:
            raise ShardMismatch("digest_mismatch", f"rank {rank} of step {header.step} arrived damaged")
