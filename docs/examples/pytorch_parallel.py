"""Trains a small model with native PyTorch parallelism: `fully_shard`, hybrid sharding, tensor parallelism, none; or
in mixed precision with gradient accumulation.

    torchrun --nproc-per-node=2 docs/examples/pytorch_parallel.py --mode fsdp2

Nothing of LM Resiliency is imported: the same script runs with any rendezvous backend.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Layer(nn.Module):
    """Two linear layers around a nonlinearity, with a residual."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["ddp", "amp", "fsdp2", "hsdp", "tp", "single"], default="fsdp2")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep after each step, to watch it")
    parser.add_argument("--log-file", dest="log", help="append one JSON line a step to LOG_FILE.rankN.jsonl")
    parser.add_argument("--checkpoints", help="save the model every 20 steps to a folder in CHECKPOINTS")
    parser.add_argument("--final", help="save what this rank holds to FINAL.rankN.pt at the end")
    return parser.parse_args()


def parallelize(model, mode):
    """The model as this rank trains it, and the ranks that see different data: how many, and which one this is."""
    world, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    if mode in ("ddp", "amp"):
        return DistributedDataParallel(model), world, rank
    if mode in ("fsdp2", "hsdp"):
        shape = (world,) if mode == "fsdp2" else (2, world // 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("shard",) if mode == "fsdp2" else ("replicate", "shard"))
        for layer in model[1:-1]:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh), world, rank
    if mode == "tp":
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
        for layer in model[1:-1]:
            parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return model, 1, 0
    return model, 1, 0


def here(value):
    """The part of a tensor that this rank holds."""
    return value.to_local() if isinstance(value, DTensor) else value


def main():
    args = arguments()
    if args.mode != "single":
        dist.init_process_group("gloo")
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(512, 16), torch.randn(512, 1))
    model = nn.Sequential(nn.Linear(16, 31), Layer(31), Layer(31), nn.Linear(31, 1))
    model, parts, part = parallelize(model, args.mode)
    # Tensor-parallel ranks see the same data and must draw the same dropout masks.
    torch.manual_seed(100 + part)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    sampler = DistributedSampler(data, num_replicas=parts, rank=part, seed=3)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    mixed = args.mode == "amp"
    # A scale this large overflows at first: the scaler skips those steps, and they are not counted.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=8, enabled=mixed)
    every, batches = (2, 0) if mixed else (1, 0)
    rank = int(os.environ.get("RANK", "0"))
    log = Path(f"{args.log}.rank{rank}.jsonl") if args.log else None

    # A restarted job goes on counting where it stood; without a backend that restores state this is 0.
    step = int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0"))
    epoch = 0
    while step < args.steps:
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            batches += 1
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                loss = nn.functional.mse_loss(model(inputs).float(), targets) / every
            scaler.scale(loss).backward()
            if batches % every:
                continue
            scale = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if scaler.get_scale() < scale:
                continue
            scheduler.step()
            step += 1
            if log is not None:
                with log.open("a") as lines:
                    lines.write(json.dumps({"step": step, "epoch": epoch, "loss": loss.item().hex()}) + "\n")
            if args.checkpoints and step % 20 == 0:
                checkpoint.save(get_model_state_dict(model), checkpoint_id=f"{args.checkpoints}/{step}")
            time.sleep(args.pace)
            if step >= args.steps:
                break
        epoch += 1

    if args.final:
        torch.save(
            {
                "model": [here(p).detach() for p in model.parameters()],
                "optimizer": [{k: here(v) for k, v in optimizer.state[p].items()} for p in model.parameters()],
                "scheduler": scheduler.state_dict(),
                "scaler": scaler.state_dict(),
                "rng": torch.get_rng_state(),
            },
            f"{args.final}.rank{rank}.pt",
        )
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
