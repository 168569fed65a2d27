"""Trains on numbered samples that reach the loop in different ways, and logs which. Imports nothing of ours, except
the kind `explicit`, whose loop has no loader of torch's."""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

SAMPLES, BATCH = 96, 4

parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--out", required=True)
parser.add_argument("--lose-worker-in", help="generation in which rank 1's loader workers die at once")
args = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def begin_worker(_number):
    if os.environ.get("LM_RESILIENCY_GENERATION") == args.lose_worker_in and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


class Numbered(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, torch.full((4,), float(index) / SAMPLES)


class Stream(IterableDataset):
    """Counts up from where it was left; the state is the next number of this rank."""

    def __init__(self):
        self.next = rank

    def __iter__(self):
        while self.next < SAMPLES * world:
            index, self.next = self.next, self.next + world
            yield index, torch.full((4,), float(index) / SAMPLES)
        self.next = rank

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Queue:
    """A source of batches that is no iterator of torch's: it remembers where it is."""

    def __init__(self):
        self.taken = 0

    def take(self):
        ids = torch.arange(self.taken, self.taken + BATCH) * world + rank
        self.taken += BATCH
        return ids, (ids[:, None] / SAMPLES).expand(BATCH, 4).clone()

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.taken = state["taken"]


def make_loader(kind):
    data = Numbered()
    if kind == "shuffle":
        return DataLoader(data, BATCH, shuffle=True, num_workers=2, worker_init_fn=begin_worker)
    if kind == "distributed":
        return DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=3), num_workers=2)
    if kind == "stream":
        return DataLoader(Stream(), BATCH)
    from torchdata.stateful_dataloader import StatefulDataLoader

    if kind == "stateful_stream":
        return StatefulDataLoader(Stream(), BATCH, num_workers=0)
    return StatefulDataLoader(data, BATCH, shuffle=True, num_workers=2)


dist.init_process_group("gloo")
torch.manual_seed(7)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(70 + rank)
step = int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0"))
log = Path(f"{args.out}.rank{rank}.jsonl").open("a", buffering=1)  # noqa: SIM115
log.write(json.dumps({"started": os.environ.get("LM_RESILIENCY_GENERATION"), "pid": os.getpid()}) + "\n")


def train(ids, x):
    global step
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    log.write(json.dumps({"step": step, "loss": loss.item().hex(), "samples": ids.tolist()}) + "\n")
    time.sleep(args.step_s)


if args.kind == "explicit":
    import lmr

    queue = Queue()
    lmr.track("queue", queue)
    while lmr.boundary() < args.steps:
        train(*queue.take())
else:
    loader = make_loader(args.kind)
    for epoch in range(10_000):
        if args.kind == "distributed":
            loader.sampler.set_epoch(epoch)
        for ids, x in loader:
            train(ids, x)
            if step == args.steps:
                break
        if step == args.steps:
            break
dist.destroy_process_group()
