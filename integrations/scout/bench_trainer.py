"""The trainer of SCOUT's benchmark: trains so many steps whenever it is told to, with all of SCOUT or with none.

    python -m lmr.integrations.scout.bench_trainer on|off

Reads a number of steps a line; answers each with wall and processor time in nanoseconds, as JSON. `hooks` answers with
what single hooks cost, in microseconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, LAYERS, TOKENS, BATCH = 256, 2, 64, 4


class Model(nn.Module):
    """A small transformer: tens of milliseconds a step on one core."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(512, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, 512)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of the next word."""
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        out: torch.Tensor = self.head(x)
        return out


def main() -> None:
    """Serve until there is no more input."""
    session = _attach() if sys.argv[1] == "on" else None
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randint(512, (64, TOKENS)))
    loader = DataLoader(data, batch_size=BATCH)

    def batches() -> Any:
        while True:
            yield from loader

    feed = batches()
    for line in sys.stdin:
        if line.strip() == "hooks":
            print(json.dumps(_hooks(session)), flush=True)
            continue
        wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        for _ in range(int(line)):
            (ids,) = next(feed)
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            dist.all_reduce(loss.detach())
            optimizer.step()
        done = {"wall_ns": time.perf_counter_ns() - wall_ns, "cpu_ns": time.process_time_ns() - cpu_ns}
        print(json.dumps(done), flush=True)
    dist.destroy_process_group()


def _attach() -> Any:
    from lmr.integrations.frameworks import pytorch, trainer_context
    from lmr.integrations.torchrun.worker_page import WorkerPage

    trainer_context.enter(WorkerPage())
    pytorch.attach()
    return pytorch.current()


def _hooks(session: Any) -> dict[str, float]:
    """Microseconds of one call of each hook, with what a step makes of it."""
    from lmr.integrations.scout import trainer

    pulse = trainer.current()
    assert pulse is not None
    at = pulse.add_group("bench", None)
    assert at is not None
    continuity = session.checks.continuity

    def collective() -> None:
        pulse.done(at, pulse.entered(at, 7))

    def look_twice() -> None:
        continuity.at_boundary(1)
        continuity.before_write()

    return {
        "one change of phase": _us(lambda: pulse.enter(0), 5_000),
        "one collective": _us(collective, 5_000),
        "continuity, both looks at a slice": _us(look_twice, 50),
        "continuity, bytes of a slice": continuity.slice_bytes,
    }


def _us(call: Callable[[], Any], times: int) -> float:
    call()
    begun = time.perf_counter_ns()
    for _ in range(times):
        call()
    return round((time.perf_counter_ns() - begun) / times / 1000, 2)


if __name__ == "__main__":
    main()
