"""The trainer of the benchmark: `python -m lmr.integrations.gemini.bench_trainer JOB JSON`; prints one JSON object.

The loop is a plain one of torch's, with a model whose parameters and AdamW state have the size that is asked for.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MB = 1_000_000
SHAPES = {40: (8, 640, 64), 400: (16, 1440, 32), 2000: (20, 2900, 8)}
"""State in MB (parameters and two moments of AdamW) -> layers, width, batch."""


def main() -> None:
    """Run one job."""
    job, settings = sys.argv[1], json.loads(sys.argv[2])
    if settings.get("protected"):
        from lmr.integrations.frameworks import trainer_context
        from lmr.integrations.torchrun.worker_page import WorkerPage

        trainer_context.enter(WorkerPage())
        import torch

        from lmr.integrations.frameworks import pytorch

        pytorch.attach()
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(json.dumps({"stall": stall, "restore": restore, "pace": pace}[job](Training(settings["mb"]), settings)))


class Training:
    """A model, an optimizer and batches."""

    def __init__(self, mb: int) -> None:
        import torch
        from torch import nn

        layers, width, batch = SHAPES[mb]
        blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
        self.model = nn.Sequential(*blocks)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(batch, width)

    def step(self) -> None:
        """One optimizer step."""
        self.optimizer.zero_grad()
        self.model(self.x).square().mean().backward()
        self.optimizer.step()

    def tensors(self) -> list[Any]:
        """Parameters and optimizer state: what a capture copies."""
        found = list(self.model.parameters())
        for state in self.optimizer.state.values():
            found += [state["exp_avg"], state["exp_avg_sq"], state["step"]]
        return [tensor.detach() for tensor in found]

    def state(self) -> dict[str, Any]:
        """As a script would save it."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


class Pairs:
    """Wall and processor seconds of one thing, repetition by repetition.

    On a busy machine processor seconds still tell what something costs.

    Args:
        cpu: the clock of processor seconds: the thread's own, or the process's where several threads work.
    """

    def __init__(self, cpu: Callable[[], float] = time.thread_time) -> None:
        self._cpu = cpu
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Measure what is inside."""
        wall_s, cpu_s = time.perf_counter(), self._cpu()
        yield
        self.wall_s.append(time.perf_counter() - wall_s)
        self.cpu_s.append(self._cpu() - cpu_s)

    def forget_first(self) -> None:
        """The first one found cold code and memory nobody had touched."""
        del self.wall_s[0], self.cpu_s[0]

    def to_json(self) -> dict[str, list[float]]:
        """As the benchmark reads it."""
        return {"wall_s": self.wall_s, "cpu_s": self.cpu_s}


class Timed:
    """Adds up how long functions of ours keep the loop."""

    def __init__(self, owner: Any, *names: str) -> None:
        self.wall_s = self.cpu_s = 0.0
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.wall_s += time.perf_counter() - wall_s
                self.cpu_s += time.thread_time() - cpu_s

        return timed


def _copier(training: Training, buffers: int = 1) -> Callable[[], None]:
    """Copies all state, each time to the next of so many places."""
    import torch

    tensors = training.tensors()
    places = itertools.cycle([[torch.zeros_like(tensor) for tensor in tensors] for _ in range(buffers)])
    return lambda: torch._foreach_copy_(next(places), tensors)


def stall(training: Training, settings: dict[str, Any]) -> dict[str, Any]:
    """How long each step waits for its capture, and how long a plain copy of the same tensors takes, step by step."""
    from lmr.integrations.frameworks.adapter import session

    found = session()
    assert found is not None
    timed = Timed(found, "_boundary", "settle")
    for _ in range(6):  # every buffer has been touched after these
        training.step()
    copy, ours, plain = _copier(training, settings["buffers"]), Pairs(), Pairs()
    for _ in range(settings["steps"]):
        wall_s, cpu_s = timed.wall_s, timed.cpu_s
        training.step()
        ours.wall_s.append(timed.wall_s - wall_s)
        ours.cpu_s.append(timed.cpu_s - cpu_s)
        with plain.one():
            copy()
    captures = found._captures
    missed = {"torn": captures.torn, "skipped": captures.skipped}
    return {"ours": ours.to_json(), "plain": plain.to_json(), **missed}


def restore(training: Training, settings: dict[str, Any]) -> dict[str, Any]:
    """From the vault's memory into a new script's objects, and by `torch.load` from a file in the page cache, in turn.

    A new script has its parameters, but no optimizer state yet: either way makes that anew.
    """
    import torch

    from lmr.integrations.frameworks.adapter import session

    found = session()
    assert found is not None
    for parameter in training.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    training.optimizer.step()
    file = Path(settings["folder"]) / "state.pt"
    torch.save(training.state(), file)
    copy, (ours, plain, loaded) = _copier(training), (Pairs(time.process_time) for _ in range(3))
    for _ in range(settings["steps"] + 1):
        training.optimizer.state.clear()
        with ours.one():
            vault = found._captures.vault()
            restored = vault.restore(settings["step"], 300)
            found._state.load(found._read(restored), buckets=False)
            vault.done_reading()
        with plain.one():
            copy()
        training.optimizer.state.clear()
        with loaded.one():
            state = torch.load(file, weights_only=True)
            training.model.load_state_dict(state["model"])
            training.optimizer.load_state_dict(state["optimizer"])
        del state, restored
    found._must_restore = False
    for side in (ours, plain, loaded):
        side.forget_first()
    return {"ours": ours.to_json(), "plain": plain.to_json(), "loaded": loaded.to_json()}


def pace(training: Training, settings: dict[str, Any]) -> dict[str, Any]:
    """Seconds a step, with a checkpoint of some kind at each."""
    import torch

    folder, kind = Path(settings["folder"]), settings["kind"]
    save: Callable[[int], Any] = lambda _step: None  # noqa: E731
    if kind == "torch.save":
        save = lambda _step: torch.save(training.state(), folder / "each.pt")  # noqa: E731
    elif kind == "async_save":
        save = _async_saver(training, folder)
    elif kind == "lm-resiliency":
        _other(training, folder)
    for step in range(6):
        training.step()
        save(step)
    began, cpu_began, last = time.perf_counter(), time.process_time(), None
    for step in range(settings["steps"]):
        training.step()
        last = save(100 + step)
    if kind == "async_save" and last is not None:
        last.result()
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    return {"step_s": wall_s / settings["steps"], "cpu_s": cpu_s / settings["steps"]}


def _other(training: Training, folder: Path) -> None:
    """lm-resiliency 0.2.0 in its own way: memory at every fifth step, no disk, no detection."""
    import importlib

    import torch

    other: Any = importlib.import_module("lm_resiliency")
    checkpoint = other.InMemoryCkptConfig(
        disk_flush_interval=0, disk_folder=str(folder), run_id="bench", pin_memory=False
    )
    other.enable_resiliency(
        training.model,
        training.optimizer,
        interval=5,
        enable_detection=False,
        checkpoint=checkpoint,
        device=torch.device("cpu"),
    )


def _async_saver(training: Training, folder: Path) -> Callable[[int], Any]:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    untyped_dist: Any = dist
    untyped_dcp: Any = dcp
    dist.init_process_group("gloo", rank=0, world_size=1, store=untyped_dist.HashStore())
    running: list[Any] = []

    def save(step: int) -> Any:
        if running:
            running.pop().result()
        running.append(
            untyped_dcp.async_save(training.state(), checkpoint_id=folder / f"dcp-{step % 2}", no_dist=False)
        )
        return running[0]

    return save


if __name__ == "__main__":
    main()
