"""Calls computed again: the same bits on equal ranks, nothing left behind; and what differing results mean."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from lmr.integrations.scout.detector_policy import RerunPolicy
from lmr.integrations.scout.rerun.golden import Golden
from lmr.integrations.scout.rerun.reruns import Reruns
from lmr.integrations.scout.rerun.verdicts import Result, Verdicts


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of tiny operations wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.back = nn.BatchNorm1d(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x + self.drop(self.back(torch.relu(self.wide(self.norm(x))))) * scale


class Model(nn.Module):
    def __init__(self, block: type[nn.Module] = Block) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList([block() for _ in range(3)])
        self.head = nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


class Rank:
    """One rank: its own data, everything else as on the others."""

    def __init__(self, number: int, model: Model | None = None, optimizer: Any = torch.optim.AdamW) -> None:
        torch.manual_seed(5)
        self.model = model or Model()
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        self.data = torch.Generator().manual_seed(number)
        self.heard: list[dict[str, Any]] = []
        self.refused: dict[str, str] = {}
        settings = RerunPolicy(every_steps=1).model_dump()
        self.reruns = Reruns(
            settings, lambda: [self.model], lambda: [self.optimizer], self.heard.append, self.refused.__setitem__
        )
        self.step = 0

    @property
    def told(self) -> list[dict[str, Any]]:
        """Results; without the steps at which there was nothing to compute."""
        return [told for told in self.heard if told["recipe"]]

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randint(50, (8,), generator=self.data)).sum().backward()
            self.optimizer.step()
            self.step += 1
            self.reruns.at_boundary(self.step)


def snapshot(rank: Rank) -> list[Any]:
    held = [t.detach().clone() for t in rank.model.state_dict().values()]
    held += [p.grad.clone() for p in rank.model.parameters() if p.grad is not None]
    held += [t.clone() for s in rank.optimizer.state.values() for t in s.values()]
    return [*held, torch.get_rng_state(), random.getstate(), [t._version for t in rank.model.parameters()]]


def same(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(one, other, strict=True))


def test_equal_ranks_with_other_data_get_the_same_bits_twice() -> None:
    ranks = [Rank(1), Rank(2)]
    for rank in ranks:
        rank.train(13)
        assert rank.refused == {}
    first, second = ([(t["recipe"], t["call"], t["digests"]) for t in rank.told] for rank in ranks)
    assert first == second
    assert all(one == two for _, _, (one, two) in first)
    assert {recipe for recipe, _, _ in first} == {
        "0.words", "0.head", "optimizer.0", "0.blocks.0", "0.blocks.1", "0.blocks.2",
    }  # fmt: skip


def test_live_state_is_untouched() -> None:
    """Weights, statistics, gradients, optimizer state, random states, versions; and nobody hears of a step."""
    rank = Rank(1)
    rank.train(2)
    steps: list[Any] = []
    handle = register_optimizer_step_post_hook(lambda optimizer, _a, _k: steps.append(optimizer))
    try:
        before = snapshot(rank)
        for number in range(3, 14):
            rank.reruns.at_boundary(number)
        assert same(before, snapshot(rank))
    finally:
        handle.remove()
    assert len(rank.told) >= 10
    assert steps == []
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in rank.model.modules())
    assert list(nn.modules.module._global_forward_hooks) == []


def test_a_rank_that_computes_otherwise_gets_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that drops the last bit of a sum, in one layer's forward or in a backward pass only."""
    sound, faulty = Rank(1), Rank(1)
    sound.train(13)
    original = Block.forward

    def off_by_one_bit(self: Block, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        out = original(self, x, scale=scale)
        if out.requires_grad:
            out.register_hook(lambda g: torch.nextafter(g, torch.full_like(g, torch.inf)))
        return out

    monkeypatch.setattr(Block, "forward", off_by_one_bit)
    faulty.train(13)
    differing = {a["recipe"] for a, b in zip(sound.told, faulty.told, strict=True) if a["digests"] != b["digests"]}
    assert differing == {"0.blocks.0", "0.blocks.1", "0.blocks.2"}


class Remembers(Block):
    """Keeps the last activation, as auxiliary losses do."""

    last: Any = None

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.last = x
        return super().forward(x, scale=scale)


def test_a_module_that_keeps_something_is_not_computed_again_and_keeps_what_it_had() -> None:
    rank = Rank(1, Model(Remembers))
    rank.train(2)
    kept = [block.last for block in rank.model.blocks]
    for number in range(3, 30):
        rank.reruns.at_boundary(number)
    assert all(block.last is one for block, one in zip(rank.model.blocks, kept, strict=True))
    assert set(rank.refused) == {f"replay of 0.blocks.{n}" for n in range(3)}
    assert "last" in rank.refused["replay of 0.blocks.0"]
    assert {t["recipe"] for t in rank.told} == {"0.words", "0.head", "optimizer.0"}


class Speaks(Block):
    """Sums its activations over all ranks."""

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        total = x.detach().clone()
        dist.all_reduce(total)
        return super().forward(x + total, scale=scale)


def test_a_module_that_speaks_to_other_ranks_is_stopped_before_it_does(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        rank = Rank(1, Model(Speaks))
        rank.train(13)
    finally:
        dist.destroy_process_group()
    assert "c10d" in rank.refused["replay of 0.blocks.0"]
    assert not any(t["recipe"].startswith("0.blocks") for t in rank.told)


class Unordered(Block):
    """Uses an operation torch has no deterministic kernel for."""

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        pooled = nn.functional.max_unpool1d(x[None], torch.arange(16).expand(1, *x.shape), 1)[0]
        return super().forward(x + 0 * pooled, scale=scale)


def test_a_module_without_deterministic_kernels_is_not_computed_again() -> None:
    rank = Rank(1, Model(Unordered))
    rank.train(13)
    assert "max_unpool" in rank.refused["replay of 0.blocks.0"]
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "Adafactor"])
def test_optimizers_of_torch_are_computed_again(kind: str) -> None:
    rank = Rank(1, optimizer=getattr(torch.optim, kind))
    rank.train(4)
    assert "optimizer.0" in {t["recipe"] for t in rank.told}, rank.refused


def test_an_optimizer_of_somebody_else_is_left_alone() -> None:
    class Own(torch.optim.SGD):
        pass

    rank = Rank(1, optimizer=Own)
    rank.train(8)
    assert list(rank.refused) == ["replay of optimizer.0"]


def test_a_call_larger_than_allowed_is_left_out() -> None:
    rank = Rank(1)
    rank.reruns._most_bytes = 1024
    rank.train(8)
    assert "most_bytes" in rank.refused["replay of 0.words"]


# -- verdicts ---------------------------------------------------------------------------------------------------------

G = "golden"
CASES = [
    ("all agree", None, "AAAA", "AAAA", "clean", ()),
    ("one of four", None, "AABA", "AABA", "corrupt", (2,)),
    ("one of two, nothing known", None, "AB", "AB", "corrupt", ()),
    ("one of two, the first is right", "A", "AB", "AB", "corrupt", (1,)),
    ("one of two, the second is right", "B", "AB", "AB", "corrupt", (0,)),
    ("two that both differ from what is known", "C", "AB", "AB", "corrupt", ()),
    ("alone and as before", "A", "A", "A", "clean", ()),
    ("alone and not as before", "A", "B", "B", "corrupt", (0,)),
    ("alone and unsteady, known", "A", "A", "B", "corrupt", (0,)),
    ("alone and unsteady, nothing known", None, "A", "B", "inconclusive", ()),
    ("one differs from itself", None, "AAAA", "AABA", "corrupt", (2,)),
    ("one of two differs from itself", None, "AA", "AB", "corrupt", (1,)),
    ("all differ from themselves", None, "ABCD", "EFGH", "inconclusive", ()),
    ("most differ from themselves, known", "A", "AAAA", "ABCD", "inconclusive", ()),
    ("all agree on something else than before", "A", "BBBB", "BBBB", "inconclusive", ()),
]  # fmt: skip


def judge(verdicts: Verdicts, first: str, second: str, step: int = 100, call: str = "c") -> list[Any]:
    for rank, digests in enumerate(zip(first, second, strict=True)):
        message = {"rank": rank, "step": step, "recipe": "0.head", "call": call, "digests": list(digests)}
        verdicts.hear(Result.parse(message), 0)
    return verdicts.look(tuple(range(len(first))), 0)


@pytest.mark.parametrize(
    ("known", "first", "second", "verdict", "ranks"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_verdict(known: str | None, first: str, second: str, verdict: str, ranks: tuple[int, ...]) -> None:
    golden = Golden()
    if known is not None:
        golden.agreed("c", known)
    (found,) = judge(Verdicts(RerunPolicy(), golden), first, second)
    assert (found.verdict, found.ranks) == (verdict, ranks)
    assert found.peers == tuple(range(len(first)))


def test_a_kernel_that_is_not_deterministic_is_said_once() -> None:
    verdicts = Verdicts(RerunPolicy(), Golden())
    assert [v.verdict for v in judge(verdicts, "AB", "CD", step=100)] == ["inconclusive"]
    assert judge(verdicts, "AB", "CD", step=200) == []
    assert judge(verdicts, "AB", "AB", step=300) == []


def test_what_two_agreed_on_names_the_faulty_one_later_also_in_another_life(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    assert [v.verdict for v in judge(Verdicts(RerunPolicy(), Golden(path)), "AA", "AA")] == ["clean"]
    assert path.stat().st_mode & 0o077 == 0
    (found,) = judge(Verdicts(RerunPolicy(), Golden(path)), "AB", "AB", step=200)
    assert (found.verdict, found.ranks) == ("corrupt", (1,))


def test_a_damaged_file_of_results_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_text("[1,")
    assert Golden(path).get("c") is None


def test_only_the_same_call_in_the_same_surroundings_is_compared() -> None:
    verdicts = Verdicts(RerunPolicy(), Golden())
    for rank, (call, digest) in enumerate([("c", "A"), ("c", "A"), ("other", "B")]):
        message = {"rank": rank, "step": 100, "recipe": "0.head", "call": call, "digests": [digest, digest]}
        verdicts.hear(Result.parse(message), 0)
    assert [(v.verdict, v.peers) for v in verdicts.look((0, 1, 2), 0)] == [("clean", (0, 1)), ("clean", (2,))]


def test_a_step_is_settled_once_the_newest_check_up_to_it_was_judged() -> None:
    verdicts = Verdicts(RerunPolicy(every_steps=100), Golden())
    assert verdicts.settled(250), "nobody computes anything again here"
    judge(verdicts, "A", "A", step=100)
    assert verdicts.settled(100)
    assert verdicts.settled(199)
    assert not verdicts.settled(200)
    verdicts.hear(Result.parse({"rank": 0, "step": 200, "recipe": "", "call": "", "digests": ["", ""]}), 0)
    assert not verdicts.settled(201)
    assert verdicts.look((0,), 0) == [], "a rank that had nothing to compute says so"
    assert verdicts.settled(201)


def test_a_rank_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    verdicts = Verdicts(RerunPolicy(settle_ms=5_000), Golden())
    message = {"rank": 0, "step": 100, "recipe": "0.head", "call": "c", "digests": ["A", "A"]}
    verdicts.hear(Result.parse(message), 1_000)
    assert verdicts.look((0, 1), 5_999) == []
    assert [v.peers for v in verdicts.look((0, 1), 6_000)] == [(0,)]
