"""A plain DDP training of a small model: imports nothing of ours. `--step-s` paces it, so that a test can act."""

import argparse
import io
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
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--out", required=True)
parser.add_argument("--fail-at", type=int, default=None, help="every rank raises KeyError at this step")
parser.add_argument("--poison-at", type=int, default=None, help="a trained parameter becomes NaN in the first life")
parser.add_argument(
    "--save", default=None, help="rank 0 saves the model to this file at --save-at; the first save is slow"
)
parser.add_argument("--save-at", type=int, default=None)
parser.add_argument("--save-s", type=float, default=60, help="for so long the first save writes")
parser.add_argument("--dcp", default=None, help="folder for a distributed checkpoint of the model every 20 steps")
parser.add_argument("--dcp-stuck-at", type=int, default=None, help="in the first life this one is never on disk")
parser.add_argument("--evaluate-at", type=int, default=None, help="rank 0 evaluates for 8 s after this step")
args = parser.parse_args()

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(7)
data = TensorDataset(torch.randn(64 * dist.get_world_size(), 8), torch.randn(64 * dist.get_world_size(), 1))
sampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
spare = nn.Parameter(torch.zeros(64))
if args.poison_at is not None:
    optimizer.add_param_group({"params": [spare]})

if args.dcp is not None:
    from torch.distributed import checkpoint

    saving_group = dist.new_group(backend="gloo")
    saved = None


class SlowStorage(io.FileIO):
    """Keeps the first life's save waiting in its first write."""

    def write(self, data):
        begun = Path(f"{args.save}.begun")
        if not begun.exists():
            begun.touch()
            time.sleep(args.save_s)
        return super().write(data)


step = int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0"))
log = Path(f"{args.out}.rank{rank}.jsonl").open("a", buffering=1)  # noqa: SIM115
started = {
    "started": os.environ.get("LM_RESILIENCY_GENERATION"),
    "pid": os.getpid(),
    "master": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    "step": step,
}
log.write(json.dumps(started) + "\n")
for epoch in range(10_000):
    sampler.set_epoch(epoch)
    for x, y in loader:
        if step == args.steps:
            break
        if args.fail_at is not None and step == args.fail_at:
            raise KeyError(f"missing weight at step {step}")
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        log.write(json.dumps({"step": step, "loss": loss.item().hex()}) + "\n")
        if step == args.poison_at and os.environ["LM_RESILIENCY_GENERATION"] == "0":
            with torch.no_grad():
                spare[7] = float("nan")
        if args.dcp is not None and step % 20 == 0:
            if saved is not None:
                saved.result()
            if step == args.dcp_stuck_at and os.environ["LM_RESILIENCY_GENERATION"] == "0":
                os.fsync = lambda _file: time.sleep(600)
            saved = checkpoint.async_save(
                {"model": model.module.state_dict()}, checkpoint_id=f"{args.dcp}/{step}", process_group=saving_group
            )
        if step == args.evaluate_at:
            model.eval()
            if rank == 0:
                with torch.no_grad():
                    model(x)
                    time.sleep(8)
            dist.barrier()
            model.train()
        if step == args.save_at and rank == 0:
            with SlowStorage(args.save, "w") as storage:
                torch.save(model.state_dict(), storage)
        time.sleep(args.step_s)
    if step == args.steps:
        break
if args.dcp is not None and saved is not None:
    saved.result()
total = sum(float(p.double().abs().sum()) for p in model.parameters())
log.write(json.dumps({"finished": step, "total": total.hex()}) + "\n")
dist.destroy_process_group()
