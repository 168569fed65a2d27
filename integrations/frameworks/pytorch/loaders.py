"""Where each DataLoader stands, and how a restarted script gets there again.

An *iteration* is one `for batch in loader`. A loader is a training loader once an optimizer step happened while one of
its iterations was feeding the loop. A position is, per training loader, how many iterations were begun, which of them
saw no step (those are run again: somebody may need what they compute), how many batches the current one has given out,
and all random state at its start.

On the way back the iterations already finished give nothing, and the current one is begun from the random state it once
began from and moved on past the batches that were used, by asking the batch sampler only: no sample is loaded twice.

Another loader may stand around one and take a batch from it before it hands out the one it took last (`read_ahead`).
At a boundary that batch has left the loader, but the loop has not seen it. On the way back it is loaded again, from the
random state it was loaded from, and the state of the boundary is set where the next one is asked for, as at first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from lmr.integrations.frameworks.pytorch import rng
from lmr.integrations.frameworks.pytorch.objects import Created
from lmr.integrations.gemini import codec
from lmr.integrations.gemini.codec import StoreTensor

FOLLOWED: list[type[Any]] = [DataLoader]
"""Kinds of loaders that hand out batches themselves, one when asked."""

MakeIterator = Callable[[Any], Any]

_BatchIterator: Any = _BaseDataLoaderIter


@dataclass
class Iteration:
    """One pass over a loader; `start` and `first` are the random states before it was made and first asked."""

    ordinal: int
    start: dict[str, Any]
    first: dict[str, Any] | None = None
    iterator: weakref.ref[Any] | None = None
    yielded: int = 0
    fed: bool = False
    stepped: bool = False
    ended: bool = False
    passes: int | None = None
    """How many passes the loader around this one had counted at the start; None: there is none around."""
    last: dict[str, Any] | None = None
    """Random state before the batch that is ahead."""
    due: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done where a batch is asked for next, and next but one."""

    @property
    def ahead(self) -> bool:
        """Whether the batch that was given out last is not in the loop yet; after the end it is."""
        return self.passes is not None

    @property
    def running(self) -> bool:
        """Whether somebody may still take batches."""
        return not self.ended and self.iterator is not None and self.iterator() is not None


@dataclass
class Track:
    """What is known of one loader."""

    number: int
    begun: int = 0
    stepless: list[int] = field(default_factory=list)
    training: bool = False
    current: Iteration | None = None


class Loaders:
    """Follows every DataLoader of the script.

    Args:
        created: loaders in creation order.
        degraded: called with what is not protected, and why.
    """

    def __init__(self, created: Created[Any], degraded: Callable[[str, str], None]) -> None:
        self._created = created
        self._degraded = degraded
        self._tracks: dict[int, Track] = {}
        self._target: dict[int, dict[str, Any]] = {}
        self._decode: Callable[[Any], Any] = lambda tree: tree

    # Following -------------------------------------------------------------------------------------------------

    def track(self, loader: Any) -> Track:
        """What is known of a loader."""
        number = self._created.note(loader)
        if number not in self._tracks:
            self._tracks[number] = Track(number)
        return self._tracks[number]

    def begin(self, loader: Any, make: MakeIterator) -> Any:
        """Begin the next iteration as usual."""
        track = self.track(loader)
        self._close(track)
        start = {"rng": rng.read(), "generators": _read_generators(loader)}
        iteration = Iteration(track.begun, start, passes=_passes_around(loader))
        track.begun += 1
        track.current = iteration
        iterator = make(loader)
        self._follow(iterator, track, iteration)
        return iterator

    @staticmethod
    def _follow(iterator: Any, track: Track, iteration: Iteration) -> None:
        iteration.iterator = weakref.ref(iterator)
        iterator.__dict__["_lmr_iteration"] = (track, iteration)

    @staticmethod
    def _close(track: Track) -> None:
        """The previous iteration is over, by its end or by a break."""
        if track.current is not None and not track.current.stepped:
            track.stepless.append(track.current.ordinal)
        track.current = None

    def of(self, iterator: Any) -> tuple[Track, Iteration] | None:
        """Whose iterator this is, None when it is not followed."""
        return iterator.__dict__.get("_lmr_iteration")  # type: ignore[no-any-return]

    @staticmethod
    def asked(iteration: Iteration) -> None:
        """A batch is asked for: samplers draw their order at the first."""
        if iteration.due:
            iteration.due.pop(0)()
        if iteration.ahead:
            iteration.last = rng.read()
        if iteration.first is None:
            iteration.first = iteration.last or rng.read()

    def gave(self, iteration: Iteration) -> None:
        """A batch has been given out."""
        iteration.yielded += 1
        if torch.is_grad_enabled():
            iteration.fed = True

    def stepped(self) -> None:
        """An optimizer step has been completed: whoever fed the loop since the last one is a training loader."""
        for track in self._tracks.values():
            iteration = track.current
            if iteration is not None and iteration.fed and (iteration.running or iteration.ahead):
                iteration.stepped = track.training = True
                iteration.fed = False

    def feeding(self) -> bool:
        """Whether a training loader is in the middle of an iteration."""
        return any(t.training and t.current is not None and t.current.running for t in self._tracks.values())

    def is_used_up(self, track: Track, iteration: Iteration) -> bool:
        """Whether the loop is through with the iteration's last batch, where that can be told."""
        if iteration.ahead:
            return False
        loader = dict(self._created.alive()).get(track.number)
        if loader is None or isinstance(loader.dataset, IterableDataset):
            return False
        try:
            return iteration.yielded >= len(loader)
        except (TypeError, NotImplementedError):  # a sampler without a length
            return False

    # Positions -------------------------------------------------------------------------------------------------

    def read(self, store: StoreTensor) -> dict[str, Any]:
        """The position, as JSON.

        Args:
            store: takes the tensors in what loaders and data sets say of their place.

        Raises:
            StateUnknown: a loader's or data set's own state holds an object that cannot be carried over.
        """
        found = {}
        alive = dict(self._created.alive())
        for number, track in self._tracks.items():
            iteration, loader = track.current, alive.get(number)
            if not track.training or iteration is None or loader is None:
                continue
            place = found[str(number)] = {
                "ordinal": iteration.ordinal,
                "stepless": list(track.stepless),
                # Samplers may draw once more where they end: who was asked in vain is to be asked in vain again.
                "yielded": iteration.yielded + int(iteration.ended),
                "start": iteration.start,
                "first": iteration.first,
                "generators": _read_generators(loader),
            }
            if iteration.passes is not None:
                place["passes"] = iteration.passes + int(iteration.ended)
                if iteration.yielded and not iteration.ended:
                    place |= {"yielded": iteration.yielded - 1, "before": iteration.last, "boundary": rng.read()}
            keeper = _keeper(loader)
            if keeper is not None:
                found[str(number)]["kept"] = codec.encode(keeper.state_dict(), f"loader.{number}", store)
        return {"loaders": found}

    def aim(self, position: dict[str, Any], decode: Callable[[Any], Any]) -> None:
        """From here on lead every training loader to its place in `position`.

        Args:
            position: as `read` returned it.
            decode: turns a part of it into values again.
        """
        self._decode = decode
        self._target = {int(number): place for number, place in position["loaders"].items()}

    @property
    def arrived(self) -> bool:
        """Whether no loader is still on its way."""
        return not self._target

    def is_on_its_way(self, loader: Any) -> bool:
        """Whether this loader has a place it has not reached yet."""
        number = self._created.number(loader)
        return number in self._target

    def begin_with_the_running_pass(self) -> None:
        """The loop does not repeat complete passes: the next one over each loader is the one that was running."""
        for number, place in self._target.items():
            self._tracks.setdefault(number, Track(number)).begun = place["ordinal"]

    def repeats(self, loader: Any) -> bool:
        """Whether the next iteration of a loader on its way saw no step and is simply run again."""
        track = self.track(loader)
        return track.begun in self._target[track.number]["stepless"]

    def read_ahead(self, loader: Any, around: Any) -> None:
        """From its next iteration on, `around` takes a batch from `loader` before it hands out the one it took last.

        Args:
            loader: inside.
            around: counts its complete passes in `iteration`, and is told here how many there were.
        """
        loader.__dict__["_lmr_around"] = weakref.ref(around)
        place = self._target.get(self.track(loader).number)
        if place is not None and "passes" in place and not self.repeats(loader):
            around.iteration = place["passes"]

    def lead(self, loader: Any, make: MakeIterator, restore: Callable[[], None]) -> Any:
        """Begin the next iteration of a loader on its way: nothing if it was finished, else where it stood.

        Args:
            loader: on its way.
            make: makes an ordinary iterator.
            restore: loads all captured state, as it was at the boundary.
        """
        track = self.track(loader)
        place = self._target[track.number]
        self._close(track)
        if track.begun < place["ordinal"]:
            track.current = Iteration(track.begun, {}, stepped=True, ended=True)
            track.training = True
            track.begun += 1
            restore()
            return _Nothing()
        del self._target[track.number]
        iteration = Iteration(track.begun, place["start"], place["first"], yielded=place["yielded"], stepped=True)
        iteration.passes = _passes_around(loader)
        track.current, track.training, track.stepless = iteration, True, list(place["stepless"])
        track.begun += 1
        keeper = _keeper(loader) if "kept" in place else None
        if keeper is None and loader.persistent_workers and iteration.ordinal > 0 and loader._iterator is None:
            # The first iteration of persistent workers draws a seed, later ones do not.
            loader._iterator = loader._get_iterator()
        rng.write(place["start"]["rng"])
        _write_generators(loader, place["start"]["generators"])
        if keeper is not None:
            keeper.load_state_dict(self._decode(place["kept"]))
            iterator = make(loader)
        else:
            iterator = self._begin_past(loader, make, iteration)
        self._follow(iterator, track, iteration)
        restore()
        if "before" not in place:
            _write_generators(loader, place["generators"])
            return iterator

        def at_boundary() -> None:
            rng.write(place["boundary"])
            _write_generators(loader, place["generators"])

        iteration.due = [lambda: rng.write(place["before"]), at_boundary]
        return iterator

    def _begin_past(self, loader: Any, make: MakeIterator, iteration: Iteration) -> Any:
        """An iterator whose next batch is the one after those that were given out."""
        used = iteration.yielded
        if loader.num_workers == 0 or isinstance(loader.dataset, IterableDataset):
            iterator = make(loader)
            if iteration.first is not None:
                rng.write(iteration.first)
            if isinstance(loader.dataset, IterableDataset):
                self._degraded("position", f"{used} batches of an IterableDataset are loaded again and dropped")
                _skip(iterator._next_data, used)
            else:
                _skip(iterator._next_index, used)
            return iterator
        # Workers are given their first batches while the iterator is made: the sampler must be past them by then.
        original = _BatchIterator._next_index

        def first(iterator: Any) -> Any:
            _BatchIterator._next_index = original
            _skip(lambda: original(iterator), used)
            return original(iterator)

        _BatchIterator._next_index = first
        try:
            return make(loader)
        finally:
            _BatchIterator._next_index = original


def _passes_around(loader: Any) -> int | None:
    """What the loader that takes batches from this one ahead of the loop has counted; None: there is none."""
    reference = loader.__dict__.get("_lmr_around")
    around = None if reference is None else reference()
    return None if around is None else int(around.iteration)


def _skip(take: Callable[[], Any], count: int) -> None:
    for _ in range(count):
        try:
            take()
        except StopIteration:
            return


class _Nothing(Iterator[Any]):
    """What a finished iteration gives."""

    def __next__(self) -> Any:
        raise StopIteration

    def __len__(self) -> int:
        return 0


def _generators(loader: Any) -> dict[str, torch.Generator]:
    """The generators a loader and its samplers draw from."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = {"loader": loader, "sampler": getattr(loader, "sampler", None), "batch_sampler": batch_sampler}
    owners["inner"] = getattr(batch_sampler, "sampler", None)
    owners["innermost"] = getattr(getattr(batch_sampler, "batch_sampler", None), "sampler", None)
    found: dict[str, torch.Generator] = {}
    for name, owner in owners.items():
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not other for other in found.values()):
            found[name] = generator
    return found


def _read_generators(loader: Any) -> dict[str, str]:
    return {name: rng.of_tensor(generator.get_state()) for name, generator in _generators(loader).items()}


def _write_generators(loader: Any, states: dict[str, str]) -> None:
    for name, generator in _generators(loader).items():
        if name in states:
            generator.set_state(rng.to_tensor(states[name]))


def _keeper(loader: Any) -> Any:
    """Who knows this loader's place and can be given it back; None: it is counted."""
    if _keeps_its_place(loader):
        return loader
    # In worker processes there are copies of the data set that cannot be asked.
    if isinstance(loader.dataset, IterableDataset) and loader.num_workers == 0 and _keeps_its_place(loader.dataset):
        return loader.dataset
    return None


def _keeps_its_place(one: Any) -> bool:
    return callable(getattr(one, "state_dict", None)) and callable(getattr(one, "load_state_dict", None))


def is_plain(loader: Any) -> bool:
    """Whether the loader hands out batches itself, one when asked: a subclass may fetch ahead of what it gives."""
    return any(type(loader).__iter__ is kind.__iter__ for kind in FOLLOWED)
