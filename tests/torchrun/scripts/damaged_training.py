"""A plain training on a machine that fails: a bit flips, sums are wrong from some step on, or a batch is left out.

Imports nothing of ours. `--sharding none` keeps the whole model on every rank (DDP), `full` a part of it on each.
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--step-s", type=float, default=0.03)
parser.add_argument("--out", required=True)
parser.add_argument("--sharding", choices=("none", "full"), default="none")
parser.add_argument("--damage", default="-1:-1", help="RANK:STEP: in the first generation, while this step computes")
parser.add_argument("--wrong", default="-1:-1", help="RANK:STEP: in the first generation, sums are off from then on")
parser.add_argument("--skip", default="-1:-1", help="RANK:STEP: in the first generation, its batch is left out")
args = parser.parse_args()

rank = int(os.environ["RANK"])
victim, when = map(int, args.damage.split(":"))
faulty, since = map(int, args.wrong.split(":"))
skipping, skipped = map(int, args.skip.split(":"))
dist.init_process_group("gloo")
torch.manual_seed(7)
data = TensorDataset(torch.randn(64 * dist.get_world_size(), 8), torch.randn(64 * dist.get_world_size(), 1))
sampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
model = DistributedDataParallel(model) if args.sharding == "none" else fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
right_linear = nn.functional.linear


def rounds_wrongly(*given: torch.Tensor) -> torch.Tensor:
    """As a failing core does it."""
    return right_linear(*given) * (1 + 2**-20)


step = int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0"))
generation = os.environ.get("LM_RESILIENCY_GENERATION")
if generation == "0" and rank == skipping:
    drawn, in_order = itertools.count(1), BatchSampler.__iter__
    BatchSampler.__iter__ = lambda self: (batch for batch in in_order(self) if next(drawn) != skipped)
log = Path(f"{args.out}.rank{rank}.jsonl").open("a", buffering=1)  # noqa: SIM115
log.write(json.dumps({"started": generation, "pid": os.getpid(), "step": step}) + "\n")
for epoch in range(10_000):
    sampler.set_epoch(epoch)
    for x, y in loader:
        if step == args.steps:
            break
        if generation == "0" and (rank, step + 1) == (faulty, since):
            nn.functional.linear = rounds_wrongly
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if generation == "0" and (rank, step + 1) == (victim, when):
            held = next(model.parameters())
            held = held.to_local() if args.sharding == "full" else held
            held.detach().numpy().reshape(-1).view(np.uint32)[5] ^= 1 << 21
        optimizer.step()
        step += 1
        log.write(json.dumps({"step": step, "loss": loss.item().hex()}) + "\n")
        time.sleep(args.step_s)
    if step == args.steps:
        break
parts = [p.to_local() if args.sharding == "full" else p for p in model.parameters()]
state = [t for p in model.parameters() for t in optimizer.state[p].values()]
parts += [t.to_local() if hasattr(t, "to_local") else t for t in state]
held = [value.hex() for part in parts for value in part.detach().double().reshape(-1).tolist()]
log.write(json.dumps({"finished": step, "state": held}) + "\n")
dist.destroy_process_group()
