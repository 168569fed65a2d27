"""A script of that framework. Imports nothing of LM Resiliency."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from spark.trainer import Trainer
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--pace", type=float, default=0.0)
parser.add_argument("--log-file", dest="log")
parser.add_argument("--final")
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)))
torch.manual_seed(100 + rank)
trainer = Trainer(model)
first = int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0"))
for _ in range(first, args.steps):
    for _ in range(2):
        loss = trainer.backward(torch.randn(4, 8))
    trainer.optimizer_step()
    with Path(f"{args.log}.rank{rank}.jsonl").open("a") as lines:
        lines.write(json.dumps({"step": trainer.global_step, "loss": loss.item().hex()}) + "\n")
    time.sleep(args.pace)
state = [[dict(s) for s in one.state.values()] for one in trainer.optimizers]
final = {
    "model": list(model.parameters()),
    "optimizers": state,
    "count": trainer.global_step,
    "rng": torch.get_rng_state(),
}
torch.save(final, f"{args.final}.rank{rank}.pt")
dist.destroy_process_group()
