"""Digests of shards: XXH3-128.

They guard against damage (a flipped bit, a torn or short transfer), not against an attacker: who may talk to a vault is
settled by the run's secret. XXH3 reads memory about as fast as memory can be read, which lets every capture be checked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import xxhash

from lmr.integrations.gemini.shard import ShardMeta

_CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class ShardDigest:
    """Digests of the part peers share and of everything else; `nonfinite` names a tensor that should be and is not."""

    shared: str
    own: str
    nonfinite: str | None = field(default=None, compare=False)

    def to_json(self) -> list[str]:
        """As it travels."""
        return [self.shared, self.own]


def of_bytes(memory: memoryview) -> str:
    """Hex digest of one stretch of memory."""
    state = xxhash.xxh3_128()
    for at in range(0, len(memory), _CHUNK_BYTES):
        state.update(memory[at : at + _CHUNK_BYTES])
    return state.hexdigest()


def of_shard(memory: memoryview, meta: ShardMeta) -> ShardDigest:
    """Both digests of a rank's shard."""
    return ShardDigest(of_bytes(memory[: meta.shared_bytes]), of_bytes(memory[meta.shared_bytes : meta.total_bytes]))


def of_slot(shards: dict[int, tuple[ShardMeta, ShardDigest]]) -> str:
    """The digest of a slot: of its ranks' digests and lengths, in rank order."""
    rows = [[meta.to_json(), digest.to_json()] for _, (meta, digest) in sorted(shards.items())]
    return xxhash.xxh3_128_hexdigest(json.dumps(rows, separators=(",", ":"), sort_keys=True).encode())
