"""Loaders that give other batches than their samplers prescribe, and much that looks like it and is not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lmr.engine.events import ReplayChecked
from lmr.integrations.scout import batch_order, page, torch_hooks
from lmr.integrations.scout.batch_order import Order
from lmr.integrations.scout.detector_policy import BatchesPolicy, ContinuityPolicy, RerunPolicy
from lmr.integrations.scout.page import Phase, Word
from lmr.integrations.scout.pulse import Pulse
from lmr.integrations.scout.replay_policy import ReplayPolicy
from lmr.integrations.scout.run_scout import RunScout
from lmr.integrations.scout.summary import Summary, to_wire

# A rank's own finding ---------------------------------------------------------------------------------------------

DATA = TensorDataset(torch.arange(50.0))


class Rank:
    """This process as a watched trainer that has taken 7 steps."""

    def __init__(self) -> None:
        _, memory = page.create(rank=0, generation=0)
        self._words = memoryview(memory).cast("q")
        self.pulse = Pulse(memory, step=7)

    def word(self, word: Word) -> int:
        """A number of the page."""
        return self._words[word]

    @property
    def strayed(self) -> int | None:
        """The first step with a wrong batch."""
        step = self._words[Word.STRAYED_STEP]
        return None if step < 0 else step


def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    for name in ("__next__", "_next_index"):
        monkeypatch.setattr(_BaseDataLoaderIter, name, getattr(_BaseDataLoaderIter, name))  # put back at the end
    made = Rank()
    batch_order.install(made.pulse, 1_000)
    return made


def loader(**more: Any) -> DataLoader[Any]:
    sampler = DistributedSampler(DATA, num_replicas=2, rank=1, shuffle=True, seed=5)
    return DataLoader(DATA, batch_size=4, sampler=sampler, **more)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("drop_last", [True, False])
def test_epochs_in_order_are_nothing(monkeypatch, workers, drop_last):
    """Also with a break, a new epoch set late, and an evaluation by the same loader between two batches."""
    watched = rank(monkeypatch)
    mine = loader(**workers, drop_last=drop_last)
    for epoch in range(3):
        mine.sampler.set_epoch(epoch)
        assert len(list(mine)) == len(mine)
    for number, _ in enumerate(mine):
        if number == 2:
            with torch.no_grad():
                assert list(loader())
            break
    list(mine)
    assert watched.strayed is None


def test_an_epoch_that_was_resumed_in_its_middle_is_nothing(monkeypatch):
    """By the framework, which asks for indices only, or by a script that moves the sampler on."""
    watched = rank(monkeypatch)
    by_framework, by_script = iter(loader()), iter(loader())
    by_framework._next_index()
    by_framework._next_index()
    next(itertools.islice(by_script._sampler_iter, 2, 3))
    assert [len(list(by_framework)), len(list(by_script))] == [5, 4]
    assert watched.strayed is None


def test_other_samplers_and_large_data_sets_are_left_alone(monkeypatch):
    """What is prescribed is not known where torch's own random state shuffles, or a sampler of the script."""

    class Halves(DistributedSampler):
        def __iter__(self) -> Iterator[int]:
            return iter(list(super().__iter__())[:13])

    watched = rank(monkeypatch)
    list(DataLoader(DATA, batch_size=4, shuffle=True))
    list(DataLoader(DATA, batch_size=4, sampler=Halves(DATA, num_replicas=2, rank=0)))
    large = TensorDataset(torch.zeros(2_000))
    monkeypatch.setattr(DistributedSampler, "__iter__", lambda _self: iter(range(0, 100, 3)))
    list(DataLoader(large, batch_size=4, sampler=DistributedSampler(large, num_replicas=2, rank=0)))
    assert watched.strayed is None


def dropping(batches: list[list[int]]) -> list[list[int]]:
    return batches[:3] + batches[4:]


def doubling(batches: list[list[int]]) -> list[list[int]]:
    return batches[:4] + batches[3:]


def swapping(batches: list[list[int]]) -> list[list[int]]:
    return [*batches[:3], batches[4], batches[3], *batches[5:]]


def ending_early(batches: list[list[int]]) -> list[list[int]]:
    return batches[:-2]


def flipping(batches: list[list[int]]) -> list[list[int]]:
    batches[3][0] ^= 1
    return batches


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fault", [dropping, doubling, swapping, ending_early, flipping])
def test_indices_that_are_not_the_next_are_told(monkeypatch, fault, workers):
    """The batch sampler goes wrong on the way; the step under way is the eighth."""
    watched = rank(monkeypatch)
    whole: Callable[[Any], Iterator[list[int]]] = BatchSampler.__iter__
    monkeypatch.setattr(BatchSampler, "__iter__", lambda self: iter(fault(list(whole(self)))))
    list(loader(num_workers=workers))
    assert watched.strayed == 8


def test_where_gradients_are_off_nothing_is_told(monkeypatch):
    watched = rank(monkeypatch)
    whole: Callable[[Any], Iterator[list[int]]] = BatchSampler.__iter__
    monkeypatch.setattr(BatchSampler, "__iter__", lambda self: iter(dropping(list(whole(self)))))
    with torch.no_grad():
        list(loader())
    assert watched.strayed is None


@pytest.mark.parametrize("taken", [0, 2])
def test_a_batch_that_is_taken_and_not_given_is_told(monkeypatch, taken):
    """And one that is given twice: somebody stands between torch's iterator and the script."""
    fetch: Callable[[Any], Any] = _BaseDataLoaderIter.__next__
    given: list[Any] = []

    def next_batch(self: Any) -> Any:
        for _ in range(taken if len(given) == 3 else 1):
            batch = fetch(self)
            given.append(batch)
        return given[-1]

    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", next_batch)
    watched = rank(monkeypatch)
    mine = iter(loader())
    for _ in range(3):
        next(mine)
    assert watched.strayed is None
    next(mine)
    assert watched.strayed == 8


def test_waiting_for_a_first_batch_is_told_apart(monkeypatch):
    """Of every iteration, and only where gradients are on."""
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", _BaseDataLoaderIter.__next__)
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    watched = Rank()
    torch_hooks._follow_loaders(watched.pulse)
    mine = loader()
    for _ in range(2):
        batches = iter(mine)
        assert watched.word(Word.FRESH) == 1
        assert watched.word(Word.LONGEST_DATA_NS) == 0
        next(batches)
        assert watched.word(Word.FRESH) == 0
        assert watched.word(Word.LONGEST_FIRST_NS) > 0
    next(batches)
    assert watched.word(Word.LONGEST_DATA_NS) > 0
    with torch.no_grad():
        iter(mine)
    assert watched.word(Word.FRESH) == 0


def test_only_the_first_step_is_kept(monkeypatch):
    watched = rank(monkeypatch)
    watched.pulse.strayed()
    watched.pulse.stepped()
    watched.pulse.strayed()
    assert watched.strayed == 8


def test_an_order_accepts_its_own_batches_only():
    order = Order([3, 1, 4, 1, 5, 9, 2], 3, drop_last=False)
    assert [order.follows([3, 1, 4]), order.may_end(), order.follows([1, 5, 9])] == [True, False, True]
    assert [order.may_end(), order.follows([2]), order.may_end()] == [False, True, True]
    assert not order.follows([2])


# What all ranks together say --------------------------------------------------------------------------------------

POLICY = ReplayPolicy(rerun=RerunPolicy(enabled=False), continuity=ContinuityPolicy(enabled=False))


def at(number: int, step: int, strayed: int | None = None) -> Summary:
    return Summary(
        number, step, step, 0, Phase.FORWARD, waiting=False, waiting_group=0, still_ms=0, state="R",
        longest_step_ms=50, strayed_step=strayed,
    )  # fmt: skip


def scout(world: int, policy: ReplayPolicy = POLICY) -> RunScout:
    made = RunScout(policy)
    made.begin(3, world)
    return made


def tell(made: RunScout, *ranks: Summary, now_ms: int = 1_000) -> list[Any]:
    made.heard({"generation": 3, "ranks": [to_wire(r) for r in ranks], "groups": {}, "calls": {}}, now_ms)
    return made.tick(now_ms)


def accusation(step: int, *ranks: int, world: int) -> ReplayChecked:
    return ReplayChecked(
        generation=3, step=step, recipe="batches", verdict="corrupt", ranks=ranks, peers=tuple(range(world))
    )


def test_the_rank_is_named_once_all_have_taken_the_step():
    """Until then it may be everybody's."""
    made = scout(4)
    assert tell(made, at(0, 40), at(1, 39), at(2, 40, 40), at(3, 40)) == []
    assert not made.vouches(40)
    assert made.vouches(39)
    later = at(0, 41), at(1, 41), at(2, 41, 40), at(3, 40)
    assert tell(made, *later, now_ms=1_100) == [accusation(40, 2, world=4)]
    assert tell(made, *later, now_ms=9_000) == []
    assert not made.vouches(39), "nothing is kept any more in a generation that ends"
    assert made.condemned()


def test_a_step_nobody_gets_through_is_judged_all_the_same():
    made = scout(4)
    waiting = at(0, 39), at(1, 39), at(2, 39, 40), at(3, 39)
    assert tell(made, *waiting) == []
    assert tell(made, *waiting, now_ms=1_000 + POLICY.batches.settle_ms) == [accusation(40, 2, world=4)]


def test_of_two_each_is_believed_of_itself():
    assert tell(scout(2), at(0, 40), at(1, 40, 40)) == [accusation(40, 1, world=2)]


@pytest.mark.parametrize("strayed", [(40, 40, 40, None), (40, 41, 12, 40)])
def test_what_most_ranks_do_is_the_script_s_doing(strayed):
    """Not at the same step, either. Steps are kept again."""
    made = scout(4)
    views = [at(number, 41, step) for number, step in enumerate(strayed)]
    assert tell(made, *views) == []
    assert made.vouches(41)
    assert not made.condemned()
    assert tell(made, *(replace(view, step=80) for view in views), now_ms=60_000) == []


def test_a_rank_without_peers_is_not_accused():
    assert tell(scout(1), at(0, 40, 40)) == []


def test_a_switched_off_detector_says_nothing():
    made = scout(4, POLICY.model_copy(update={"batches": BatchesPolicy(enabled=False)}))
    assert tell(made, at(0, 41), at(1, 41), at(2, 41, 40), at(3, 41)) == []
    assert made.vouches(41)
