"""A loader that takes a batch before it hands out the one it took last, resumed at every boundary of a run."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lmr.integrations.frameworks.pytorch import hooks, rng
from lmr.integrations.frameworks.pytorch.loaders import Iteration, Loaders, Track
from lmr.integrations.frameworks.pytorch.objects import Created

PASSES = 3


class Noisy(Dataset[torch.Tensor]):
    """Samples are drawn anew each time they are loaded."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(2)


class Ahead:
    """As Accelerate's loaders do: the end is known with the last batch, and a pass counts when it is complete."""

    def __init__(self, inside: DataLoader[torch.Tensor]) -> None:
        self.inside = inside
        self.iteration = 0

    def __iter__(self) -> Any:
        batches = iter(self.inside)
        batch = next(batches, None)
        if batch is None:
            return
        while batch is not None:
            following = next(batches, None)
            yield batch, self.iteration, following is None
            batch = following
        self.iteration += 1


class Session:
    """As much of a session as loaders need. Keeps what it would capture at each boundary."""

    mine, copying = True, False

    def __init__(self, aim: dict[str, Any] | None = None, step: int = 0) -> None:
        self.objects = types.SimpleNamespace(loaders=Created())
        self.loaders = Loaders(self.objects.loaders, lambda what, why: pytest.fail(f"{what}: {why}"))
        self.step = self.captured = step
        self.kept: dict[int, dict[str, Any]] = {}
        if aim is not None:
            self.loaders.aim(aim["position"], lambda tree: tree)
            self.restore = lambda: rng.write(aim["rng"])

    def fault(self, where: str, error: BaseException) -> None:
        raise error

    def keep(self) -> None:
        """Everything as it is now."""
        if self.step > self.captured:
            self.captured = self.step
            position = self.loaders.read(lambda tensor, path: None)
            self.kept[self.step] = {"position": position, "rng": rng.read()}

    def at_next(self, track: Track, iteration: Iteration) -> None:
        if track.training:
            assert not self.loaders.is_used_up(track, iteration)
            self.keep()

    def begin(self, loader: Any, make: Any) -> Any:
        if self.loaders.is_on_its_way(loader) and not self.loaders.repeats(loader):
            return self.loaders.lead(loader, make, self.restore)
        return self.loaders.begin(loader, make)


def train(
    monkeypatch: pytest.MonkeyPatch, session: Session, size: int, every: int, *, own_generator: bool, eager: bool
) -> list[Any]:
    """A loop of a step every `every` batches; everything it saw. `eager` keeps state right after each step, too."""
    seen: list[Any] = []
    with monkeypatch.context() as patch:
        for owner, name in ((DataLoader, "__init__"), (DataLoader, "__iter__"), (_BaseDataLoaderIter, "__next__")):
            patch.setattr(owner, name, getattr(owner, name))
        hooks.follow_loaders(DataLoader, session)  # type: ignore[arg-type]
        hooks._follow_batches(session)  # type: ignore[arg-type]
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(5) if own_generator else None
        inside = DataLoader(Noisy(size), batch_size=2, shuffle=True, generator=generator)
        loader, micro = Ahead(inside), 0
        for _ in range(PASSES):
            session.loaders.read_ahead(inside, loader)
            for batch, passes, is_last in loader:
                micro = 0 if is_last else micro + 1
                seen.append((session.step, batch.tolist(), passes, torch.rand(1).item()))
                if micro % every == 0:
                    session.step += 1
                    session.loaders.stepped()
                    if eager:
                        session.keep()
        seen.append((loader.iteration, torch.rand(1).item()))
    return seen


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(("size", "every"), [(10, 1), (9, 2), (2, 1)])
def test_a_run_goes_on_from_each_boundary_as_if_nothing_had_been(
    monkeypatch, size, every, own_generator, eager
) -> None:
    session = Session()
    whole = train(monkeypatch, session, size, every, own_generator=own_generator, eager=eager)
    assert len(session.kept) >= session.step - 1 - eager
    for step, kept in session.kept.items():
        resumed = Session(kept, step)
        seen = train(monkeypatch, resumed, size, every, own_generator=own_generator, eager=eager)
        assert seen == [one for one in whole[:-1] if one[0] >= step] + whole[-1:], f"from step {step}"
        assert resumed.loaders.arrived
