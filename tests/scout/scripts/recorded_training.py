"""A DDP training with evaluations, saves and a public collective a step, for so many seconds: nothing of ours in it."""

import argparse
import os
import random
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=100)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--evaluate-every", type=int, default=40)
parser.add_argument("--save-every", type=int, default=60)
args = parser.parse_args()


class Samples(Dataset):
    """Made as they are asked for, sometimes slowly."""

    def __len__(self):
        return 1 << 19

    def __getitem__(self, index):
        if index % 997 == 0:
            time.sleep(0.3)
        made = torch.Generator().manual_seed(index)
        return torch.randn(args.width, generator=made), torch.randn(1, generator=made)


rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(7)
layers = [part for _ in range(args.layers) for part in (nn.Linear(args.width, args.width), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(args.width, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
sampler = DistributedSampler(Samples(), seed=3)
loader = DataLoader(Samples(), batch_size=16, sampler=sampler, num_workers=args.workers)
end, stop = time.monotonic() + args.seconds, torch.zeros(1)
for step, (x, y) in enumerate(loader, 1):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    stop.fill_(float(time.monotonic() > end))
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if stop.item():
        break
    if step % args.evaluate_every == 0:
        model.eval()
        with torch.no_grad():
            for _ in range(random.randrange(2, 20)):
                model.module(x)
        model.train()
    if rank == 0 and step % args.save_every == 0:
        with tempfile.NamedTemporaryFile() as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
dist.barrier()
time.sleep(1)  # nobody takes the connections down while another still reads
dist.destroy_process_group()
