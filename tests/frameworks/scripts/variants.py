"""Plain PyTorch training loops of many shapes, chosen by name. Imports nothing of ours, and knows nothing of a restart
but the step number every script may read."""

import argparse
import copy
import json
import os
import random
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler
from torch.utils.data.distributed import DistributedSampler

FEATURES, CLASSES, SAMPLES, BATCH = 16, 5, 48, 8


class Points(Dataset):
    """Numbered random points; `noisy` draws from every global random state when a sample is loaded."""

    def __init__(self, samples=SAMPLES, noisy=False):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(samples, FEATURES, generator=generator)
        self.y = torch.randint(CLASSES, (samples,), generator=generator)
        self.noisy = noisy

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        if self.noisy:
            x = x + 0.1 * torch.randn(FEATURES) + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return index, x, self.y[index]


class Stream(IterableDataset):
    def __iter__(self):
        points = Points()
        for index in range(len(points)):
            yield points[index]


class PythonShuffle(Sampler):
    """A sampler of the user's own that draws from Python's random state."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        order = list(range(self.count))
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return self.count


class Net(nn.Module):
    def __init__(self, width=32, unused=False, layers=2):
        super().__init__()
        sizes = [FEATURES] + [width] * layers
        self.body = nn.Sequential(
            *(nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(sizes))
        )
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(width, CLASSES)
        self.spare = nn.Linear(width, CLASSES) if unused else None
        self.calls = 0

    def forward(self, x):
        return self.head(self.dropout(self.body(x)))


class Run:
    """Logs steps and saves everything at the end."""

    def __init__(self, args):
        self.args = args
        self.rank = int(os.environ.get("RANK", "0"))
        self.step = int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0"))

    def log(self, loss, samples, **more):
        self.step += 1
        entry = {"step": self.step, "loss": float(loss).hex(), "samples": [int(i) for i in samples], **more}
        with Path(f"{self.args.log_file}.rank{self.rank}.jsonl").open("a") as lines:
            lines.write(json.dumps(entry) + "\n")
        time.sleep(self.args.pause)

    def save(self, **things):
        state = {name: thing.state_dict() if hasattr(thing, "state_dict") else thing for name, thing in things.items()}
        state |= {
            "step": self.step,
            "torch_rng": torch.get_rng_state(),
            "python_rng": random.getstate(),
            "numpy_rng": [x.tolist() if hasattr(x, "tolist") else x for x in np.random.get_state()],
        }
        torch.save(state, f"{self.args.final}.rank{self.rank}.pt")


def seed(rank=0):
    torch.manual_seed(11 + rank)
    random.seed(22 + rank)
    np.random.seed(33 + rank)


def plain(run, loader, epochs=5, scheduler_kind="step", meddle=False, frozen=False):
    """One process; the scheduler is stepped once an epoch, after an evaluation over another loader."""
    model = Net()
    if frozen:
        model.body[0].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    scheduler = {
        "step": lambda: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
        "meddler": lambda run: plain(run, shuffled(), meddle=True),
        "frozen": lambda run: plain(run, shuffled(), frozen=True),
        "plateau": lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    }[scheduler_kind]()
    held_out = DataLoader(Points(16), batch_size=4)
    for _ in range(epochs):
        model.train()
        for ids, x, y in loader:
            if meddle:
                for parameter in model.parameters():
                    parameter.data.mul_(0.999)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            run.log(loss, ids, lr=optimizer.param_groups[0]["lr"])
        model.eval()
        with torch.no_grad():
            score = sum(float(cross_entropy(model(x), y)) for _, x, y in held_out)
        scheduler.step(*([score] if scheduler_kind == "plateau" else []))
    run.save(model=model, optimizer=optimizer, scheduler=scheduler)


def own_generator(run):
    data = Points()
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(5))
    plain(run, DataLoader(data, batch_sampler=BatchSampler(sampler, BATCH, drop_last=False)))


def accumulate(run, epochs=6, every=2):
    """Mixed precision, a scaler that has to skip steps first, accumulation, a running average, a schedule a step."""
    model = Net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-2, total_steps=60)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=4)
    loader = DataLoader(Points(noisy=True), batch_size=BATCH, shuffle=True)
    seen = []
    for _ in range(epochs):
        for ids, x, y in loader:
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(model(x), y) / every
            scaler.scale(loss).backward()
            seen += ids.tolist()
            if len(seen) % (every * BATCH) == 0:
                before = scaler.get_scale()
                scaler.step(optimizer)
                scaler.update()
                skipped = scaler.get_scale() < before
                optimizer.zero_grad()
                if not skipped:
                    scheduler.step()
                    average.update_parameters(model)
                    run.log(loss.detach(), seen, scale=before)
                    seen = []
            if len(seen) > 4 * every * BATCH:
                seen = seen[-every * BATCH :]
    run.save(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, average=average)


def two_optimizers(run):
    """Generator and critic in turn: a step is the first optimizer's."""
    maker, critic = nn.Linear(4, FEATURES), nn.Linear(FEATURES, 1)
    first = torch.optim.Adam(maker.parameters(), lr=1e-2)
    second = torch.optim.RMSprop(critic.parameters(), lr=1e-2, momentum=0.5)
    loader = DataLoader(Points(), batch_size=BATCH, shuffle=True)
    for _ in range(5):
        for ids, x, _ in loader:
            second.zero_grad()
            (critic(maker(torch.randn(BATCH, 4)).detach()) - critic(x)).mean().backward()
            second.step()
            first.zero_grad()
            loss = -critic(maker(torch.randn(BATCH, 4))).mean()
            loss.backward()
            first.step()
            run.log(loss.detach(), ids)
    run.save(maker=maker, critic=critic, first=first, second=second)


def no_loader(run):
    """Data made from the step number; nothing but calls of the model, of which a part is frozen, marks a boundary."""
    model = Net()
    model.body[0].requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    points = Points()
    while run.step < 30:
        order = torch.Generator().manual_seed(run.step)
        ids = torch.randint(len(points), (BATCH,), generator=order)
        optimizer.zero_grad()
        loss = cross_entropy(model(points.x[ids]), points.y[ids])
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.log(loss, ids)
    run.save(model=model, optimizer=optimizer, scheduler=scheduler)


def by_step(run, steps=24):
    """Batches made from the step number."""
    points = Points()
    while run.step < steps:
        ids = torch.randint(len(points), (BATCH,), generator=torch.Generator().manual_seed(run.step))
        yield ids, points.x[ids], points.y[ids]


def in_epochs(loader, epochs=4):
    """Batches of a loader."""
    for _ in range(epochs):
        yield from loader


def closure(run, batches):
    """LBFGS calls the model several times within a step, and keeps a history."""
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, history_size=4, line_search_fn="strong_wolfe")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    for ids, x, y in batches:

        def evaluate(x=x, y=y):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(evaluate)
        scheduler.step()
        run.log(loss.detach(), ids, lr=optimizer.param_groups[0]["lr"])
    run.save(model=model, optimizer=optimizer, scheduler=scheduler)


class Average(nn.Module):
    """A running average as it is often written: a copy that is written to through `.data`."""

    def __init__(self, model, decay=0.9):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model), decay
        self.module.requires_grad_(False)

    def update(self, model):
        for mine, new in zip(self.module.parameters(), model.parameters(), strict=True):
            mine.data.mul_(self.decay).add_(new.data, alpha=1 - self.decay)


def copies(run):
    """A running average of one's own, a target that is set now and then, and a teacher that stays as it is."""
    teacher = Net(width=24).eval().requires_grad_(False)
    model = Net()
    average, target = Average(model), copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loader = shuffled(noisy=True)
    for _ in range(5):
        for ids, x, y in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                towards = target.eval()(x) + teacher(x)
            loss = cross_entropy(model(x), y) + 0.1 * mse_loss(model(x), towards)
            loss.backward()
            optimizer.step()
            average.update(model)
            if run.step % 4 == 3:
                target.load_state_dict(model.state_dict())
            run.log(loss.detach(), ids)
    run.save(model=model, optimizer=optimizer, average=average, target=target)


def raw(run):
    """Parameters that are in no module, and no loader: nobody can see where a step ends."""
    weight = torch.zeros(FEATURES, CLASSES, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for ids, x, y in by_step(run, 110):
        optimizer.zero_grad()
        loss = cross_entropy(x @ weight, y)
        loss.backward()
        optimizer.step()
        run.log(loss.detach(), ids)
    run.save(weight=weight)


def growing(run, how):
    """What is trained changes in the course of the run, by the step number every script may read."""
    model = Net(layers=3)
    held = list(model.body[0].parameters())
    rest = [p for p in model.parameters() if all(p is not one for one in held)]
    for parameter in held:
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters() if how == "unfrozen" else rest, lr=0.05, momentum=0.9)
    second = None
    loader = shuffled(noisy=True)
    for _ in range(5):
        for ids, x, y in loader:
            if run.step >= 6 and not held[0].requires_grad:
                for parameter in held:
                    parameter.requires_grad_(True)
                if how == "added":
                    optimizer.add_param_group({"params": held, "lr": 0.01})
                elif how == "second":
                    second = torch.optim.Adam(held, lr=0.01)
            optimizer.zero_grad()
            for parameter in held:
                parameter.grad = None
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if second is not None:
                second.step()
            run.log(loss.detach(), ids)
    run.save(model=model, optimizer=optimizer, second=second)


def compiled(run):
    """A compiled module, and a schedule that is stepped before the optimizer."""
    model = torch.compile(Net(), backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    loader = shuffled(noisy=True)
    for _ in range(4):
        for ids, x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            scheduler.step()
            optimizer.step()
            run.log(loss.detach(), ids, compiled=torch._dynamo.utils.counters["stats"]["unique_graphs"])
    run.save(model=model._orig_mod, optimizer=optimizer, scheduler=scheduler)


def zipped(run):
    """Two loaders feed one loop."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    left, right = (DataLoader(Points(noisy=True), batch_size=BATCH, shuffle=True) for _ in range(2))
    for _ in range(5):
        for (ids, x, y), (other_ids, other_x, _) in zip(left, right, strict=True):
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y) + mse_loss(model(other_x), model(x).detach())
            loss.backward()
            optimizer.step()
            run.log(loss, ids.tolist() + other_ids.tolist())
    run.save(model=model, optimizer=optimizer)


def ddp(run, unused=False, static=False, shuffle_every_epoch=True):
    """Data parallel with several small buckets."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = DistributedDataParallel(
        Net(width=96, unused=unused, layers=4),
        bucket_cap_mb=0.05,
        find_unused_parameters=unused,
        static_graph=static,
    )
    seed(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    data = Points(noisy=True, samples=SAMPLES * dist.get_world_size())
    sampler = DistributedSampler(data, seed=5)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    for epoch in range(5):
        if shuffle_every_epoch:
            sampler.set_epoch(epoch)
        for ids, x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.log(loss, ids)
    run.save(model=model, optimizer=optimizer, scheduler=scheduler)
    dist.destroy_process_group()


def shuffled(noisy=False, **kwargs):
    return DataLoader(Points(noisy=noisy), batch_size=BATCH, shuffle=True, **kwargs)


VARIANTS = {
    "plain": lambda run: plain(run, shuffled(noisy=True)),
    "meddler": lambda run: plain(run, shuffled(), meddle=True),
    "frozen": lambda run: plain(run, shuffled(), frozen=True),
    "plateau": lambda run: plain(run, shuffled(), scheduler_kind="plateau"),
    "own_generator": own_generator,
    "loader_generator": lambda run: plain(run, shuffled(generator=torch.Generator().manual_seed(1))),
    "python_sampler": lambda run: plain(run, DataLoader(Points(), BATCH, sampler=PythonShuffle(SAMPLES))),
    "workers": lambda run: plain(run, shuffled(num_workers=2)),
    "persistent_workers": lambda run: plain(run, shuffled(num_workers=2, persistent_workers=True)),
    "stream": lambda run: plain(run, DataLoader(Stream(), batch_size=BATCH)),
    "accumulate": accumulate,
    "two_optimizers": two_optimizers,
    "no_loader": no_loader,
    "closure": lambda run: closure(run, in_epochs(shuffled(noisy=True))),
    "closure_no_loader": lambda run: closure(run, by_step(run)),
    "copies": copies,
    "raw": raw,
    "unfrozen": lambda run: growing(run, "unfrozen"),
    "added": lambda run: growing(run, "added"),
    "second": lambda run: growing(run, "second"),
    "compiled": compiled,
    "zipped": zipped,
    "ddp": ddp,
    "ddp_unused": lambda run: ddp(run, unused=True),
    "ddp_static": lambda run: ddp(run, static=True),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--log-file", required=True)
    parser.add_argument("--final", required=True)
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    seed()
    VARIANTS[args.variant](Run(args))


if __name__ == "__main__":
    main()
