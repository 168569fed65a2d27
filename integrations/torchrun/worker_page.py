"""One page of memory shared by a supervisor and its trainer.

The trainer writes what must be known after its death, however it dies: the newest optimizer step, and the error that
ended it. A pipe would need the writer alive; a page does not.
"""

from __future__ import annotations

import mmap
import os
import struct

TYPE_CHECKING = False  # importing typing is a tenth of a supervisor's start
if TYPE_CHECKING:
    from typing import Any

PAGE_BYTES = 16384
_STEP = struct.Struct("<q")
_LENGTH = struct.Struct("<I")
_STEP_AT = 0
_LENGTH_AT = 8
_ERROR_AT = 64


class WorkerPage:
    """Shared by its descriptor, which a fork inherits or a socket passes on; it has no name.

    Args:
        fd: a page another process made; None makes one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("lmr-worker-page", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, PAGE_BYTES)
        self._memory = mmap.mmap(self.fd, PAGE_BYTES)
        if fd is None:
            self.write_step(None)

    def write_step(self, step: int | None) -> None:
        """Remember the newest completed optimizer step."""
        _STEP.pack_into(self._memory, _STEP_AT, -1 if step is None else step)

    def read_step(self) -> int | None:
        """The newest completed optimizer step, None before the first."""
        (step,) = _STEP.unpack_from(self._memory, _STEP_AT)
        return None if step < 0 else int(step)

    def write_error(self, error: dict[str, Any]) -> None:
        """Remember the error that ends the trainer; too large ones are not kept."""
        import json

        body = json.dumps(error).encode()
        if len(body) > PAGE_BYTES - _ERROR_AT:
            return
        self._memory[_ERROR_AT : _ERROR_AT + len(body)] = body
        _LENGTH.pack_into(self._memory, _LENGTH_AT, len(body))

    def read_error(self) -> dict[str, Any] | None:
        """The error the trainer wrote, None when it wrote none."""
        (length,) = _LENGTH.unpack_from(self._memory, _LENGTH_AT)
        if not 0 < length <= PAGE_BYTES - _ERROR_AT:
            return None
        import json  # only now: most supervisors never read an error

        try:
            error = json.loads(self._memory[_ERROR_AT : _ERROR_AT + length])
        except ValueError:
            return None
        return error if isinstance(error, dict) else None
