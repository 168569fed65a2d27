"""State that changes between two steps: what a bit flip looks like, and what a script may do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lmr.integrations.scout import continuity, page
from lmr.integrations.scout.continuity import Continuity, Named
from lmr.integrations.scout.detector_policy import ContinuityPolicy
from lmr.integrations.scout.page import Word
from lmr.integrations.scout.piece import Piece, sums
from lmr.integrations.scout.pulse import Pulse


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of tiny operations wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Rank:
    """A training of one model, whose continuity is watched as a session does it."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        _, self.memory = page.create(0, 0)
        self.said: list[str] = []
        policy = ContinuityPolicy(**settings)
        pulse = Pulse(self.memory, 0)
        self.watched = Continuity(policy.model_dump(), pulse, self.live, lambda what, why: self.said.append(why))
        self.step = 0

    def live(self) -> Iterator[Named]:
        for i, parameter in enumerate(self.model.parameters()):
            yield (i,), parameter
            for key, value in self.optimizer.state.get(parameter, {}).items():
                yield (i, key), value

    def train(self, between: Any = None) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(4, 64)).sum().backward()
        if between is not None:
            between()
        self.watched.before_write()
        self.optimizer.step()
        self.step += 1
        self.watched.at_boundary(self.step)

    @property
    def told(self) -> tuple[int, int]:
        """Newest step looked at, newest step damaged."""
        words = memoryview(self.memory).cast("q")
        return words[Word.CHECKED_STEP], words[Word.DAMAGED_STEP]


def flip(tensor: torch.Tensor) -> None:
    """As memory does it: nobody's `_version` changes."""
    tensor.detach().numpy().view(np.uint32).reshape(-1)[3] ^= 1 << 20


def test_a_flipped_bit_in_a_parameter_is_damage_of_the_step_that_left_it() -> None:
    rank = Rank()
    for _ in range(5):
        rank.train()
    assert rank.told == (4, -1)
    rank.train(lambda: flip(rank.model[0].weight))
    assert rank.told == (5, 5)
    rank.train()
    assert rank.told == (6, 5)


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq", "step"])
def test_optimizer_state_is_watched_too(key: str) -> None:
    rank = Rank()
    for _ in range(4):
        rank.train()
    state = rank.optimizer.state[rank.model[1].weight][key]
    rank.train(lambda: state.numpy().reshape(-1).view(np.uint32)[:1].__ixor__(4))
    assert rank.told == (4, 4)


def test_a_write_of_the_script_is_no_damage() -> None:
    rank = Rank()

    def clamp() -> None:
        with torch.no_grad():
            for parameter in rank.model.parameters():
                parameter.clamp_(-0.01, 0.01)

    for number in range(8):
        rank.train(clamp if number % 3 == 2 else None)
    assert rank.told[1] == -1
    assert rank.said == []


def test_what_is_written_behind_torchs_back_from_the_beginning_is_left_alone() -> None:
    rank = Rank()

    def clamp() -> None:
        for parameter in rank.model.parameters():
            parameter.data.mul_(0.99)

    for _ in range(8):
        rank.train(clamp)
    assert rank.told == (7, -1)
    assert len(rank.said) == 4
    rank.watched._live = lambda: iter(())
    rank.watched._pieces = []
    rank.train()
    rank.train()
    assert rank.told == (9, -1), "nothing to look at is no reason to wait"


def test_every_piece_gets_its_turn_and_no_step_looks_at_more_than_a_slice() -> None:
    rank = Rank(slice_bytes=4096, proving_checks=1)
    sizes, seen = [], set()
    for _ in range(60):
        rank.train()
        noted = rank.watched._noted
        sizes.append(sum(one.piece.nbytes for one in noted))
        seen |= {(one.piece.name, one.piece.begin) for one in noted}
    assert max(sizes) <= 4096
    total = {(name, begin) for name, tensor in rank.live() for begin in range(0, tensor.nbytes, 4096)}
    assert seen == total


def test_the_slice_is_what_the_time_of_a_step_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at a piece takes a millisecond here; a step of three seconds may spend nine of them."""
    clock = [0]
    monkeypatch.setattr(continuity.time, "perf_counter_ns", lambda: clock[0])
    read = Piece.read

    def slowly(piece: Piece) -> Any:
        clock[0] += 1_000_000
        return read(piece)

    monkeypatch.setattr(Piece, "read", slowly)
    monkeypatch.setattr(continuity, "FLOOR_BYTES", 4096)
    monkeypatch.setattr(continuity, "PIECE_BYTES", 1024)
    rank = Rank(cost_permille=3)
    looks = []
    for _ in range(20):
        rank.train(lambda: clock.__setitem__(0, clock[0] + 3_000_000_000))
        looks.append(len(rank.watched._noted))
    assert max(looks[:2]) <= 5, "it begins with the floor"
    assert looks[-1] <= 9
    rank = Rank(cost_permille=1000)
    for _ in range(20):
        rank.train(lambda: clock.__setitem__(0, clock[0] + 3_000_000_000))
    assert len(rank.watched._noted) > 20, "all of it where there is time"


def test_what_lies_on_an_accelerator_is_compared_there() -> None:
    tensor = torch.arange(4096, dtype=torch.float32)
    before = sums(tensor, 0, 8192)
    assert torch.equal(before, sums(tensor.clone(), 0, 8192))
    flip(tensor)
    after = sums(tensor, 0, 8192)
    assert bool((before != after).all())
    assert torch.equal(sums(tensor, 8192, 16384), sums(torch.arange(4096, dtype=torch.float32), 8192, 16384))


def test_an_answer_from_an_accelerator_is_told_when_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor stands in for the accelerator: the sums are computed and compared as they are there."""
    monkeypatch.setattr(Piece, "read", lambda piece: sums(piece.tensor(), piece.begin, piece.end))
    rank = Rank()
    for _ in range(5):
        rank.train()
    assert rank.told == (4, -1)
    rank.train(lambda: flip(rank.model[0].weight))
    assert rank.told == (5, 5)


def test_a_state_that_moved_is_another_state() -> None:
    rank = Rank()
    for _ in range(4):
        rank.train()
    rank.train(lambda: setattr(rank.model[0].weight, "data", rank.model[0].weight.data * 2))
    assert rank.told == (4, -1)
