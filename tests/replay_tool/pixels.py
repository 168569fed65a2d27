"""Just enough of PNG to look at a screenshot: rows of RGB, without a library."""

from __future__ import annotations

import struct
import zlib
from collections import Counter


def colours(png: bytes, every: int = 2) -> Counter[tuple[int, int, int]]:
    """How often each colour is seen, every `every`-th pixel of every `every`-th row."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert depth == 8
    size = {2: 3, 6: 4}[kind]
    data, at = b"", 8
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + length] if name == b"IDAT" else b""
        at += length + 12
    raw, stride = zlib.decompress(data), width * size
    found: Counter[tuple[int, int, int]] = Counter()
    row = bytearray(stride)
    for y in range(height):
        start = y * (stride + 1)
        row = _unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), row, size)
        if y % every == 0:
            found.update((row[x], row[x + 1], row[x + 2]) for x in range(0, stride, size * every))
    return found


def _unfilter(kind: int, line: bytearray, above: bytearray, size: int) -> bytearray:
    for i in range(len(line)):
        left = line[i - size] if i >= size else 0
        up = above[i]
        corner = above[i - size] if i >= size else 0
        if kind == 1:
            line[i] = (line[i] + left) & 255
        elif kind == 2:
            line[i] = (line[i] + up) & 255
        elif kind == 3:
            line[i] = (line[i] + (left + up) // 2) & 255
        elif kind == 4:
            near = min(
                (abs(up - corner), 0, left), (abs(left - corner), 1, up), (abs(left + up - 2 * corner), 2, corner)
            )
            line[i] = (line[i] + near[2]) & 255
    return line
