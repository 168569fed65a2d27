"""What the bytes of one rank's shard are.

    | shared tensors | own tensors | entries (JSON) | tree (JSON) |
    0          shared_bytes   tensor_bytes                  total_bytes

Shared is what data-parallel peers must hold bit for bit alike: replicated parameters and their optimizer state. It
comes first and alone, so that one digest over it can be compared between ranks. Entries name the tensors and say where
they lie; the tree is everything that is not a tensor (`codec`). Offsets are multiples of 64 bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from lmr.integrations.gemini.errors import ShardMismatch

ALIGN_BYTES = 64
FORMAT = 2

Section = Literal["shared", "own"]


@dataclass(frozen=True)
class Wanted:
    """A tensor to be placed: its dtype by torch's name, its bytes, its section, and whether it must be finite."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    section: Section
    finite: bool = False


@dataclass(frozen=True)
class Entry:
    """A tensor in a shard."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    section: Section
    finite: bool


@dataclass(frozen=True)
class ShardMeta:
    """The lengths of a shard's parts; small enough for any message."""

    rank: int
    shared_bytes: int
    tensor_bytes: int
    entries_bytes: int
    tree_bytes: int

    @property
    def total_bytes(self) -> int:
        """Length of the whole shard."""
        return self.tensor_bytes + self.entries_bytes + self.tree_bytes

    def to_json(self) -> dict[str, int]:
        """As it travels."""
        return {
            "format": FORMAT,
            "rank": self.rank,
            "shared_bytes": self.shared_bytes,
            "tensor_bytes": self.tensor_bytes,
            "entries_bytes": self.entries_bytes,
            "tree_bytes": self.tree_bytes,
        }

    @classmethod
    def parse(cls, body: Any) -> ShardMeta:
        """Read and check what came in.

        Raises:
            ShardMismatch: another format, or lengths that make no sense.
        """
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise ShardMismatch("topology_mismatch", f"a shard of an unknown format: {body!r:.200}")
        lengths: dict[str, int] = {}
        for name in ("rank", "shared_bytes", "tensor_bytes", "entries_bytes", "tree_bytes"):
            value = body.get(name)
            if type(value) is not int or value < 0:
                raise ShardMismatch("topology_mismatch", f"a shard with impossible lengths: {body!r:.200}")
            lengths[name] = value
        meta = cls(**lengths)
        if meta.shared_bytes > meta.tensor_bytes:
            raise ShardMismatch("topology_mismatch", "the shared part is longer than all tensors")
        return meta


class Layout:
    """Where each tensor goes.

    Args:
        wanted: the tensors; their order within a section is kept.
    """

    def __init__(self, wanted: list[Wanted]) -> None:
        self.entries: list[Entry] = []
        offset = 0
        self.shared_bytes = 0
        for section in ("shared", "own"):
            for item in wanted:
                if item.section != section:
                    continue
                self.entries.append(
                    Entry(item.name, item.dtype, item.shape, offset, item.nbytes, item.section, item.finite)
                )
                offset += -(-item.nbytes // ALIGN_BYTES) * ALIGN_BYTES
            if section == "shared":
                self.shared_bytes = offset
        self.tensor_bytes = offset
        self.entries_json = json.dumps(
            [[e.name, e.dtype, list(e.shape), e.offset, e.nbytes, e.section, e.finite] for e in self.entries],
            separators=(",", ":"),
        ).encode()

    def meta(self, rank: int, tree_bytes: int) -> ShardMeta:
        """The lengths, once the tree is known."""
        return ShardMeta(rank, self.shared_bytes, self.tensor_bytes, len(self.entries_json), tree_bytes)


def read_entries(memory: memoryview, meta: ShardMeta) -> dict[str, Entry]:
    """The entries of a shard by name.

    Raises:
        ShardMismatch: they do not describe these bytes.
    """
    try:
        rows = json.loads(bytes(memory[meta.tensor_bytes : meta.tensor_bytes + meta.entries_bytes]))
        entries = {row[0]: Entry(row[0], row[1], tuple(row[2]), *row[3:7]) for row in rows}
    except (ValueError, TypeError, IndexError) as error:
        raise ShardMismatch("digest_mismatch", f"the entries of a shard cannot be read: {error}") from None
    for entry in entries.values():
        if not 0 <= entry.offset <= entry.offset + entry.nbytes <= meta.tensor_bytes:
            raise ShardMismatch("digest_mismatch", f"{entry.name} lies outside its shard")
    return entries


def read_tree(memory: memoryview, meta: ShardMeta) -> Any:
    """The encoded tree of a shard.

    Raises:
        ShardMismatch: not JSON.
    """
    at = meta.tensor_bytes + meta.entries_bytes
    try:
        return json.loads(bytes(memory[at : at + meta.tree_bytes]))
    except ValueError as error:
        raise ShardMismatch("digest_mismatch", f"the tree of a shard cannot be read: {error}") from None
