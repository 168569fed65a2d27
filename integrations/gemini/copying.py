"""Copies of state that go on while the model computes.

What forward changes is copied at the boundary. What only the optimizer writes (parameters, its own state) may be copied
until the optimizer runs next: by a thread without the interpreter's lock on the CPU, by a stream of its own on an
accelerator. Whoever started a copy looks at its trace (`traces`) before and after, on the thread that trains.
"""

from __future__ import annotations

import queue
import threading
from typing import Any, Protocol

import torch

from lmr.integrations.gemini.errors import CopyFailed


class Copy(Protocol):
    """A copy under way."""

    def done(self) -> bool:
        """Whether it has ended."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it has not ended within `timeout_s`.

        Raises:
            CopyFailed: it failed.
        """


class Copier(Protocol):
    """Starts copies."""

    def start(self, places: list[torch.Tensor], tensors: list[torch.Tensor]) -> Copy:
        """Begin to copy `tensors` into `places`, tensor by tensor."""


class ThreadCopier:
    """Copies host memory on one thread; torch gives the interpreter's lock back for the whole list."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_ThreadCopy] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, places: list[torch.Tensor], tensors: list[torch.Tensor]) -> Copy:
        """Begin on the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="lmr-copy", daemon=True)
            self._thread.start()
        job = _ThreadCopy(places, tensors)
        self._jobs.put(job)
        return job

    def _work(self) -> None:
        while True:
            self._jobs.get().run()


class _ThreadCopy:
    def __init__(self, places: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
        self._work: tuple[list[torch.Tensor], list[torch.Tensor]] | None = (places, tensors)
        self._ended = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        assert self._work is not None
        try:
            copy_all(*self._work)
        except Exception as error:  # noqa: BLE001  a thread's edge: `wait` raises it
            self._error = error
        self._work = None
        self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        ended = self._ended.wait(timeout_s)
        if self._error is not None:
            raise CopyFailed(f"the copy failed: {self._error!r}")
        return ended


class StreamCopier:
    """Copies accelerator memory to the host on a stream of its own, behind all work that is already queued.

    The host memory is pinned once a buffer; what cannot be pinned is still copied, and then waited for by torch.

    Args:
        device: `torch.cuda`, or what has its `Stream`, `Event`, `current_stream`, `stream` and `cudart`.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = device.Stream()
        self._pinned: set[int] = set()

    def start(self, places: list[torch.Tensor], tensors: list[torch.Tensor]) -> Copy:
        """Queue the copies and an event behind them."""
        for place in places:
            self._pin(place.untyped_storage())
        self._stream.wait_stream(self._device.current_stream())
        with self._device.stream(self._stream), torch.no_grad():
            for place, tensor in zip(places, tensors, strict=True):
                place.copy_(tensor.detach(), non_blocking=True)
            event = self._device.Event()
            event.record(self._stream)
        return _StreamCopy(self._device, event)

    def _pin(self, storage: torch.UntypedStorage) -> None:
        if storage.nbytes() and storage.data_ptr() not in self._pinned:
            self._pinned.add(storage.data_ptr())
            self._device.cudart().cudaHostRegister(storage.data_ptr(), storage.nbytes(), 0)

    def forget(self) -> None:
        """The buffers are about to go, and others may come to lie where they were; every copy has ended."""
        for address in self._pinned:
            self._device.cudart().cudaHostUnregister(address)
        self._pinned.clear()


class _StreamCopy:
    def __init__(self, device: Any, event: Any) -> None:
        self._device = device
        self._event = event

    def done(self) -> bool:
        return bool(self._event.query())

    def wait(self, timeout_s: float) -> bool:
        """The device is waited for, for however long it takes: it would be waited for in any case."""
        self._event.synchronize()
        return True


def copy_all(places: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    """Copy in one call."""
    if not places:
        return
    with torch.no_grad():
        torch._foreach_copy_(places, [tensor.detach() for tensor in tensors])
