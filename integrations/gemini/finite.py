"""Whether what has been trained is still made of numbers.

A digest tells that replicas are alike, not that they are worth keeping: not-a-number is alike on all of them. Which
tensors must be finite is said by their entry; a mask of minus infinities may be part of a model, a weight of one may
not. Numbers are judged by their exponent bits, so that types numpy does not know are checked too.
"""

from __future__ import annotations

from lmr.integrations.gemini.digest import Each
from lmr.integrations.gemini.shard import Entry, ShardMeta, read_entries

CHUNK_BYTES = 256 * 1024
"""Small enough to stay in a core's cache between the two passes over it."""

_LEAST: dict[str, tuple[int, int]] = {
    "float64": (8, 0x7FF0000000000000),
    "complex128": (8, 0x7FF0000000000000),
    "float32": (4, 0x7F800000),
    "complex64": (4, 0x7F800000),
    "float16": (2, 0x7C00),
    "complex32": (2, 0x7C00),
    "bfloat16": (2, 0x7F80),
    "float8_e5m2": (1, 0x7C),
    "float8_e4m3fn": (1, 0x7F),
}
"""By torch's name: bytes of a number, and the least positive value that is not finite, read as an integer."""


def can_be_checked(dtype: str) -> bool:
    """Whether numbers of this type, named as torch does, can be other than finite and are known here."""
    return dtype in _LEAST


def first_nonfinite(memory: memoryview, meta: ShardMeta, each: Each = map) -> str | None:
    """The name of the first tensor that must be finite and is not; None when all are.

    Args:
        memory: the shard.
        meta: its lengths.
        each: `map`, or a pool's.

    Raises:
        ShardMismatch: the entries do not describe these bytes.
    """
    entries = [entry for entry in read_entries(memory, meta).values() if entry.finite]
    found = each(lambda entry: _is_finite(memory, entry), entries)
    return next((entry.name for entry, fine in zip(entries, found, strict=True) if not fine), None)


def _is_finite(memory: memoryview, entry: Entry) -> bool:
    """Whether no number reaches the least that is not finite: positive ones read as signed, negative as unsigned."""
    import numpy as np

    width, least = _LEAST[entry.dtype]
    signed = np.frombuffer(memory[entry.offset : entry.offset + entry.nbytes], dtype=f"i{width}")
    unsigned = signed.view(f"u{width}")
    least_negative = least | 1 << (8 * width - 1)
    count = CHUNK_BYTES // width
    return all(
        int(signed[at : at + count].max()) < least and int(unsigned[at : at + count].max()) < least_negative
        for at in range(0, len(signed), count)
    )
