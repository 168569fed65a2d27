"""A training full of pauses that are nobody's fault, one after the other; what it does just now is in a file.

Argument: how many seconds of standing still are a hang.
"""

import gc
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, get_worker_info

from lmr.integrations.frameworks import trainer_context
from lmr.integrations.scout import trainer
from lmr.integrations.torchrun.worker_page import WorkerPage

HANG_S = float(sys.argv[1])
LONG_S = 1.6 * HANG_S
SHORT_S = 0.3 * HANG_S
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
now = Path(os.environ["STORE"] + ".now")
assert trainer.attach(trainer_context.enter(WorkerPage())) is not None
dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=world)
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


class Samples(TensorDataset):
    """One sample comes late where rank 2 has a worker process to load it."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if rank == 2 and index == 36 and get_worker_info() is not None:
            time.sleep(LONG_S)
        return super().__getitem__(index)


class SlowFile(io.BytesIO):
    """Shared storage on a bad day."""

    def write(self, data: object) -> int:
        time.sleep(LONG_S / 8)
        return super().write(data)  # type: ignore[arg-type]


data = Samples(torch.randn(160, 4), torch.randn(160, 1))


def train(
    batches: int, micro: int = 1, loader: DataLoader | None = None, pause: Callable[[], None] | None = None
) -> None:
    """So many steps; the pause comes in the middle of the last one's forward pass."""
    batch_of = iter(loader or DataLoader(data, batch_size=4))
    for step in range(batches):
        for part in range(micro):
            x, y = next(batch_of)
            with wrapped.no_sync() if part < micro - 1 else nullcontext():
                loss = nn.functional.mse_loss(wrapped(x), y) / micro
                if pause is not None and step == batches - 1 and part == 0:
                    pause()
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(torch.ones(3))
        time.sleep(0.02)


def only(*ranks: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    return lambda act: act if rank in ranks else lambda: None


def stopped(then: Callable[[], None], after_s: float = 0.1) -> None:
    """SIGSTOP in the middle of something, and SIGCONT a little later."""
    pid = os.getpid()
    subprocess.Popen(["sh", "-c", f"sleep {after_s}; kill -STOP {pid}; sleep {SHORT_S}; kill -CONT {pid}"])
    then()


def evaluate() -> None:
    model.eval()
    with torch.no_grad():
        model(torch.randn(4, 4))
        time.sleep(LONG_S)
    model.train()


def collect() -> None:
    gc.collect()
    time.sleep(SHORT_S)


def save() -> None:
    torch.save(model.state_dict(), SlowFile())


def uneven() -> None:
    """Rank 0 has less data than the others."""
    with Join([wrapped]):
        for x, y in list(DataLoader(data, batch_size=4))[: 2 if rank == 0 else 9]:
            nn.functional.mse_loss(wrapped(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(HANG_S / 6)


def compile_late() -> None:
    """The compiler is not even loaded before."""

    def slowly(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., object]:
        time.sleep(LONG_S)
        return graph.forward

    torch.compile(nn.Linear(4, 4), backend=slowly)(torch.randn(4, 4))


acts: dict[str, Callable[[], None]] = {
    "the first step compiles": lambda: train(1, pause=only(1)(lambda: time.sleep(LONG_S))),
    "warm": lambda: train(10),
    "everybody evaluates": evaluate,
    "rank 0 evaluates": only(0)(evaluate),
    "rank 0 saves": only(0)(save),
    "rank 1 compiles": only(1)(compile_late),
    "gradients add up": lambda: train(2, micro=4, pause=only(1)(lambda: time.sleep(SHORT_S))),
    "a loader's worker pauses": lambda: train(11, loader=DataLoader(data, batch_size=4, num_workers=1)),
    "garbage is collected": lambda: train(2, pause=only(2)(collect)),
    "one is stopped": lambda: train(2, pause=only(1)(lambda: stopped(lambda: time.sleep(SHORT_S)))),
    "two are stopped": lambda: train(2, pause=only(0, 1)(lambda: stopped(lambda: time.sleep(SHORT_S)))),
    "one is stopped late in its evaluation": only(1)(lambda: stopped(evaluate, after_s=LONG_S - SHORT_S)),
    "data is uneven": uneven,
}
Path(os.environ["READY"]).touch()
for name, act in acts.items():
    if rank == 0:
        now.write_text(name)
    act()
    train(34)  # what is usual is told by the newest 32 steps
if rank == 0:
    now.write_text("done")
    time.sleep(SHORT_S)
dist.destroy_process_group()
