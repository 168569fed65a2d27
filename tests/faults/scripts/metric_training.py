"""A DDP training whose learning rate follows metrics that public collectives add up: imports nothing of ours."""

import argparse
import datetime
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--out", required=True)
parser.add_argument("--timeout-s", type=float, default=1800)
args = parser.parse_args()

rank = int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=args.timeout_s))
world = dist.get_world_size()
torch.manual_seed(7)
data = TensorDataset(torch.randn(64 * world, 8), torch.randn(64 * world, 1))
sampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

step = int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0"))
log = Path(f"{args.out}.rank{rank}.jsonl").open("a", buffering=1)  # noqa: SIM115
log.write(json.dumps({"started": os.environ.get("LM_RESILIENCY_GENERATION"), "pid": os.getpid(), "step": step}) + "\n")
for epoch in range(10_000):
    sampler.set_epoch(epoch)
    for x, y in loader:
        if step == args.steps:
            break
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        mean_loss = loss.detach().reshape(1) / world
        dist.all_reduce(mean_loss)
        sizes = torch.tensor([x.abs().mean(), y.abs().mean()]) / world
        dist.all_reduce(sizes)
        optimizer.param_groups[0]["lr"] = 1e-3 * float(1 + 0.1 * torch.tanh(mean_loss) + 0.1 * torch.tanh(sizes[1]))
        optimizer.step()
        step += 1
        log.write(json.dumps({"step": step, "loss": loss.item().hex()}) + "\n")
        time.sleep(args.step_s)
    if step == args.steps:
        break
total = [float(p.double().abs().sum()).hex() for p in model.parameters()]
log.write(json.dumps({"finished": step, "total": total}) + "\n")
dist.destroy_process_group()
