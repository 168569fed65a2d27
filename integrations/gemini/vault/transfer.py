"""Copies between vaults over sealed TCP connections.

    client                                     server
    put {copy, digests}             ->
                                    <-         go | have | refused {why}
    shards, rank by rank, in chunks ->
                                    <-         stored | refused {why}

    get {run, step, slot}           ->
                                    <-         copy {copy, digests} | refused {why}
                                    <-         shards, rank by rank, in chunks

Every frame is authenticated; the digests in the header are checked against the bytes that arrived, end to end. A broken
connection leaves nothing behind: the transfer begins again.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
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
        rows = [[meta.to_json(), found.to_json(), peers] for _, (meta, found, peers) in sorted(self.shards.items())]
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
                shards[meta.rank] = (meta, ShardDigest(str(row[1][0]), str(row[1][1])), row[2])
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


def send_memory(channel: Channel, memories: Iterable[memoryview], chunk_bytes: int) -> None:
    """Send stretches of memory in chunks."""
    for memory in memories:
        for at in range(0, len(memory), chunk_bytes):
            channel.send_bytes(memory[at : at + chunk_bytes])


def receive_memory(channel: Channel, memories: Iterable[memoryview]) -> None:
    """Fill stretches of memory with what comes."""
    for memory in memories:
        at = 0
        while at < len(memory):
            at += channel.recv_bytes_into(memory[at:])


def verify(header: CopyHeader, memories: dict[int, memoryview]) -> None:
    """Check the bytes that arrived against the header.

    Raises:
        ShardMismatch: `digest_mismatch`, naming the rank.
    """
    for rank, (meta, expected, _) in header.shards.items():
        if digest.of_shard(memories[rank], meta) != expected:
            raise ShardMismatch("digest_mismatch", f"rank {rank} of step {header.step} arrived damaged")
