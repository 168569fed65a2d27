"""Maps pages of one memfd over a stretch of another's mapping, so that equal bytes are there once."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import cache

_MAP_FIXED = 0x10


@cache
def _libc_mmap() -> Callable[..., int | None]:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    return function


def replace_pages(mapping: mmap.mmap, start: int, end: int, fd: int, offset: int, *, writable: bool) -> None:
    """From here on `mapping[start:end]` shows the file `fd` from `offset` on; closing the mapping ends that too.

    Args:
        mapping: a shared mapping.
        start: on a page border.
        end: on a page border.
        fd: another file, or the mapping's own.
        offset: on a page border.
        writable: whether the pages may be written to through this mapping; else that is a segmentation fault.

    Raises:
        OSError: the kernel refuses.
    """
    anchor = ctypes.c_char.from_buffer(mapping)
    address = ctypes.addressof(anchor)
    del anchor
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    found = _libc_mmap()(address + start, end - start, protection, mmap.MAP_SHARED | _MAP_FIXED, fd, offset)
    if found != address + start:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
