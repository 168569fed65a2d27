"""What a loader takes and gives: the batches its sampler prescribes, each of them once, one after the other.

    DistributedSampler       the order of an epoch follows from its seed, epoch, rank and length
          | indices          compared with the order computed a second time
    DataLoader's iterator
          | batch            one is taken for each that is given
       script

A rank that gets other data than it should spoils the gradients of all, and nothing it computes shows that. Only torch's
own iterators are followed, and only orders that can be computed again.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)
from torch.utils.data.distributed import DistributedSampler

from lmr.integrations.scout.pulse import Pulse

_PLAIN = (_SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter)


class Order:
    """The batches of one iteration, as they must come.

    Args:
        indices: of all samples, in order.
        batch_size: samples a batch.
        drop_last: whether an incomplete batch at the end is left out.
    """

    def __init__(self, indices: Sequence[int], batch_size: int, *, drop_last: bool) -> None:
        self._size = batch_size
        length = len(indices) - len(indices) % batch_size if drop_last else len(indices)
        self._indices = array("q", indices[:length])
        self._at: int | None = None
        self._lost = False

    def follows(self, drawn: Sequence[int]) -> bool:
        """Whether these are the indices of the next batch; said once, then nothing is expected any more.

        The first batch may be any of the order: whoever resumes an epoch may have moved its loader on.
        """
        if self._lost:
            return True
        if self._at is None:
            self._at = self._place_of(list(drawn))
            self._lost = self._at is None
            return True
        self._lost = self._batch(self._at) != list(drawn)
        self._at += self._size
        return not self._lost

    def may_end(self) -> bool:
        """Whether nothing is missing."""
        return self._lost or self._at is None or self._at >= len(self._indices)

    def _place_of(self, drawn: list[int]) -> int | None:
        """Where the order goes on after this batch."""
        for at in range(0, len(self._indices), self._size):
            if self._indices[at] == drawn[0] and self._batch(at) == drawn:
                return at + self._size
        return None

    def _batch(self, at: int) -> list[int]:
        return self._indices[at : at + self._size].tolist()


def install(pulse: Pulse, most_samples: int) -> None:
    """Watch every loader of the script; once a process.

    Args:
        pulse: told of a batch that is not the next.
        most_samples: longest data set whose order is computed a second time.
    """
    fetch: Callable[[Any], Any] = _BaseDataLoaderIter.__next__
    draw: Callable[[Any], Any] = _BaseDataLoaderIter._next_index
    prescribed: Callable[[Any], Any] = DistributedSampler.__iter__

    @functools.wraps(fetch)
    def next_batch(self: Any) -> Any:
        before = getattr(self, "_num_yielded", None)
        batch = fetch(self)
        if type(self) in _PLAIN and before is not None and self._num_yielded != before + 1:
            _stray(pulse)
        return batch

    @functools.wraps(draw)
    def next_index(self: Any) -> Any:
        order = _order_of(self, prescribed, most_samples) if pulse.live else None
        if order is None:
            return draw(self)
        try:
            drawn = draw(self)
        except StopIteration:
            if not order.may_end():
                _stray(pulse)
            raise
        if not order.follows(drawn):
            _stray(pulse)
        return drawn

    _BaseDataLoaderIter.__next__ = next_batch  # type: ignore[method-assign]
    _BaseDataLoaderIter._next_index = next_index  # type: ignore[method-assign]


def _stray(pulse: Pulse) -> None:
    if torch.is_grad_enabled():  # what an evaluation is given changes no state
        pulse.strayed()


def _order_of(iterator: Any, prescribed: Callable[[Any], Any], most_samples: int) -> Order | None:
    """The order of the iteration under way, computed before its first batch; None where it cannot be computed again."""
    known = iterator.__dict__.get("_lmr_order")
    if known is None or known[0] is not iterator._sampler_iter:  # persistent workers begin anew with the same iterator
        known = (iterator._sampler_iter, _order(iterator, prescribed, most_samples))
        iterator.__dict__["_lmr_order"] = known
    found: Order | None = known[1]
    return found


def _order(iterator: Any, prescribed: Callable[[Any], Any], most_samples: int) -> Order | None:
    batches = iterator._index_sampler
    sampler = getattr(batches, "sampler", None)
    if type(iterator) not in _PLAIN or type(batches) is not BatchSampler or type(sampler) is not DistributedSampler:
        return None
    try:
        if sampler.total_size > most_samples:
            return None
        return Order(list(prescribed(sampler)), batches.batch_size, drop_last=batches.drop_last)
    except Exception:  # noqa: BLE001  the loader will meet the same error, and it is the script's
        return None
