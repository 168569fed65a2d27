"""Digests of shards: BLAKE3, 128 bits of it.

They guard against damage (a flipped bit, a torn or short transfer), and against whoever writes to a connection between
vaults: digests travel in sealed frames, so bytes that have these digests need no seal of their own. BLAKE3 is about as
fast as a plain copy on one core; SHA-256 takes five times as long, and XXH3, though faster, can be forged.

A shard's parts are digested in chunks, and a part's digest is that of its chunks' digests. So two shards can be
compared chunk by chunk, and a transfer needs to carry only what the other side lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from blake3 import blake3

from lmr.integrations.gemini.shard import ShardMeta

DIGEST_BYTES = 16

CHUNK_BYTES = 1024 * 1024
"""Each part is cut here from its beginning; a multiple of the page size."""

T = TypeVar("T")
R = TypeVar("R")


class Each(Protocol):
    """`map`, or that of a pool of threads: digests are computed without the interpreter's lock."""

    def __call__(self, function: Callable[[T], R], items: Iterable[T], /) -> Iterable[R]:
        """The results in order."""


@dataclass(frozen=True)
class ShardDigest:
    """Digests of the part peers share and of everything else; `nonfinite` names a tensor that should be and is not."""

    shared: str
    own: str
    chunks: tuple[str, ...] = field(default=(), compare=False, repr=False)
    nonfinite: str | None = field(default=None, compare=False)

    def to_json(self) -> list[str]:
        """As it travels."""
        return [self.shared, self.own]


def chunk_spans(meta: ShardMeta) -> list[tuple[int, int]]:
    """Where each chunk of a shard begins and ends; the shared part's come first, and no chunk crosses into the own."""
    return [*_cut(0, meta.shared_bytes), *_cut(meta.shared_bytes, meta.total_bytes)]


def _cut(start: int, end: int) -> list[tuple[int, int]]:
    return [(at, min(at + CHUNK_BYTES, end)) for at in range(start, end, CHUNK_BYTES)]


def of_chunk(memory: memoryview) -> str:
    """Hex digest of one chunk."""
    return blake3(memory).hexdigest(DIGEST_BYTES)


def of_chunks(chunks: Sequence[str], meta: ShardMeta) -> ShardDigest:
    """The digests of a shard whose chunks have these."""
    shared = -(-meta.shared_bytes // CHUNK_BYTES)
    return ShardDigest(_of_list(chunks[:shared]), _of_list(chunks[shared:]), tuple(chunks))


def _of_list(chunks: Sequence[str]) -> str:
    return blake3("".join(chunks).encode()).hexdigest(DIGEST_BYTES)


def of_shard(memory: memoryview, meta: ShardMeta, each: Each = map) -> ShardDigest:
    """All digests of a rank's shard.

    Args:
        memory: the shard.
        meta: its lengths.
        each: `map`, or a pool's.
    """
    return of_chunks(list(each(of_chunk, (memory[start:end] for start, end in chunk_spans(meta)))), meta)


def of_slot(shards: dict[int, tuple[ShardMeta, ShardDigest]]) -> str:
    """The digest of a slot: of its ranks' digests and lengths, in rank order."""
    rows = [[meta.to_json(), digest.to_json()] for _, (meta, digest) in sorted(shards.items())]
    return blake3(json.dumps(rows, separators=(",", ":"), sort_keys=True).encode()).hexdigest(DIGEST_BYTES)
