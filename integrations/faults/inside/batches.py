"""What a rank's loaders give out."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lmr.integrations.faults.inside.injector import Injector


def install(injector: Injector) -> None:
    """Stand between every loader and whoever asks it."""
    fetch: Callable[[Any], Any] = _BaseDataLoaderIter.__next__
    held: dict[int, Any] = {}
    last: dict[int, Any] = {}

    @functools.wraps(fetch)
    def next_batch(self: Any) -> Any:
        if not injector.active or not torch.is_grad_enabled():
            return fetch(self)
        if id(self) in held:
            return held.pop(id(self))
        for _ in injector.due("io_error"):
            read_what_cannot_be_read()
        for _ in injector.due("resource_unavailable"):
            wait_for_ever()
        for _ in injector.due("drop", target="batch"):
            fetch(self)
        for _ in injector.due("duplicate", target="batch"):
            return last[id(self)] if id(self) in last else fetch(self)
        for _ in injector.due("reorder", target="batch"):
            later = fetch(self)
            sooner = fetch(self)
            held[id(self)] = later
            return sooner
        batch = fetch(self)
        last.clear()
        last[id(self)] = batch
        return batch

    _BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign]


def read_what_cannot_be_read() -> None:
    """The kernel says EIO: there is nothing at the first address of this process."""
    with Path("/proc/self/mem").open("rb", buffering=0) as memory:
        memory.read(1)


def wait_for_ever() -> None:
    """Open a pipe nobody will ever write to: blocks in the kernel, as a dead mount does."""
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder, "pipe")
        os.mkfifo(pipe)
        pipe.read_bytes()
