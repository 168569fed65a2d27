"""Whether what has been trained is still made of numbers.

A digest tells that replicas are alike, not that they are worth keeping: not-a-number is alike on all of them. Which
tensors must be finite is said by their entry; a mask of minus infinities may be part of a model, a weight of one may
not. Numbers are judged by their exponent bits, so that types numpy does not know are checked too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmr.integrations.gemini.shard import Entry, ShardMeta, read_entries

if TYPE_CHECKING:
    import numpy as np

CHUNK_BYTES = 256 * 1024
"""Small enough to stay in a core's cache between the two passes over it."""

_LARGEST: dict[str, tuple[str, int, int]] = {
    "float64": ("u8", 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
    "complex128": ("u8", 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
    "float32": ("u4", 0x7FFFFFFF, 0x7F800000),
    "complex64": ("u4", 0x7FFFFFFF, 0x7F800000),
    "float16": ("u2", 0x7FFF, 0x7C00),
    "complex32": ("u2", 0x7FFF, 0x7C00),
    "bfloat16": ("u2", 0x7FFF, 0x7F80),
    "float8_e5m2": ("u1", 0x7F, 0x7C),
    "float8_e4m3fn": ("u1", 0x7F, 0x7F),
}
"""By torch's name: the integer of that width, the mask that takes the sign away, the least value that is not finite."""


def can_be_checked(dtype: str) -> bool:
    """Whether numbers of this type, named as torch does, can be other than finite and are known here."""
    return dtype in _LARGEST


def first_nonfinite(memory: memoryview, meta: ShardMeta) -> str | None:
    """The name of the first tensor that must be finite and is not; None when all are.

    Args:
        memory: the shard.
        meta: its lengths.

    Raises:
        ShardMismatch: the entries do not describe these bytes.
    """
    for entry in read_entries(memory, meta).values():
        if entry.finite and not _is_finite(memory, entry):
            return entry.name
    return None


def _is_finite(memory: memoryview, entry: Entry) -> bool:
    import numpy as np

    width, mask, least = _LARGEST[entry.dtype]
    numbers = np.frombuffer(memory[entry.offset : entry.offset + entry.nbytes], dtype=width)
    count = min(len(numbers), CHUNK_BYTES // numbers.itemsize)
    room: np.ndarray[Any, Any] = np.empty(count, dtype=width)
    for at in range(0, len(numbers), max(1, count)):
        part = numbers[at : at + count]
        magnitudes = np.bitwise_and(part, numbers.dtype.type(mask), out=room[: len(part)])
        if int(magnitudes.max()) >= least:
            return False
    return True
