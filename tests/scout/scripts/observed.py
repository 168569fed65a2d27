"""A training that is observed, and then does what it is told: argument 1. Touches the file READY after ten steps."""

import os
import sys
import time
import types
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lmr.integrations.frameworks import trainer_context
from lmr.integrations.scout import trainer
from lmr.integrations.torchrun.worker_page import WorkerPage

what = sys.argv[1]
if what == "distributed save":
    import torch.distributed.checkpoint as dcp
if what == "safetensors":  # stands in for the package, which writes by this name of its module
    safetensors = types.ModuleType("safetensors.torch")
    safetensors.serialize_file = lambda *_args, **_more: wait_for_ever()
    sys.modules["safetensors.torch"] = safetensors
rank = int(os.environ["RANK"])
assert trainer.attach(trainer_context.enter(WorkerPage())) is not None
torch.manual_seed(1)
if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=2)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


class Samples(TensorDataset):
    """Storage that answers no more after ten batches, where that is wanted."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if what == "batch" and index >= 20:
            wait_for_ever()
        return super().__getitem__(index)


loader = DataLoader(Samples(torch.randn(400, 4), torch.randn(400, 1)), batch_size=2)


def wait_for_ever() -> None:
    time.sleep(3600)


for number, (x, y) in enumerate(loader):
    loss = nn.functional.mse_loss(model(x), y)
    if what == "nan" and number == 6:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.is_initialized():
        dist.all_reduce(torch.ones(3))
    if number == 9:
        Path(os.environ["READY"]).touch()
        if what != "batch":
            break
if what == "absent":
    if rank == 0:
        dist.all_reduce(torch.ones(3))
elif what == "eval":
    model.eval()
elif what == "declared":
    with trainer.long_section("a report"):
        wait_for_ever()
elif what == "distributed save":
    from torch.distributed.checkpoint import FileSystemWriter

    class Stuck(FileSystemWriter):
        def write_data(self, *_args: object, **_more: object) -> None:
            wait_for_ever()

    dcp.save({"model": model.state_dict()}, storage_writer=Stuck(os.environ["STORE"] + ".dcp"))
elif what == "safetensors":
    safetensors.serialize_file({}, os.environ["STORE"] + ".safetensors", metadata=None)
elif what == "save":
    original = torch.serialization._save

    def stuck(*_args: object, **_more: object) -> None:
        wait_for_ever()

    torch.serialization._save = stuck
    torch.save(model.state_dict(), os.environ["STORE"] + ".pt")
wait_for_ever()
