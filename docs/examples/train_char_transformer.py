"""Trains a small character-level transformer on the help topics that ship with CPython. Plain PyTorch.

Run it alone or under torchrun, with any rendezvous backend:

    torchrun --nproc-per-node=2 docs/examples/train_char_transformer.py --steps 200 --log-file /tmp/run --final /tmp/run
"""

import argparse
import json
import math
import os
import random
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class HelpTopics(Dataset):
    """Windows of text as character ids, with the number of the window."""

    def __init__(self, window, stride):
        text = "\n".join(topics[name] for name in sorted(topics))
        alphabet = sorted(set(text))
        ids = {ord(character): i for i, character in enumerate(alphabet)}  # fewer than 256
        self.alphabet_size = len(alphabet)
        self.text = torch.frombuffer(bytearray(text.translate(ids), "latin-1"), dtype=torch.uint8).long()
        self.window = window
        self.starts = range(0, len(text) - window - 1, stride)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, index):
        start = self.starts[index]
        piece = self.text[start : start + self.window + 1]
        return index, piece[:-1], piece[1:]


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_attention, self.norm_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.forward_layer = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm_attention(x)).chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        seen = scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.forward_layer(self.norm_forward(x))


class CharTransformer(nn.Module):
    """A decoder over characters."""

    def __init__(self, alphabet_size, window, width, layers, heads, dropout):
        super().__init__()
        self.characters = nn.Embedding(alphabet_size, width)
        self.positions = nn.Embedding(window, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, alphabet_size)

    def forward(self, ids):
        positions = torch.arange(ids.shape[1])
        x = self.dropout(self.characters(ids) + self.positions(positions))
        return self.head(self.norm(self.blocks(x)))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=240, help="stop after this many optimizer steps")
    parser.add_argument("--epochs", type=int, default=1000, help="stop after this many passes over the text")
    parser.add_argument("--batch-size", type=int, default=8, help="windows a rank and step")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--window", type=int, default=64, help="characters a window")
    parser.add_argument("--stride", type=int, default=256, help="characters between two windows")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--log-file", dest="log", help="append one JSON line a step to LOG_FILE.rankN.jsonl")
    parser.add_argument("--final", help="save everything to FINAL.rankN.pt at the end")
    return parser.parse_args()


def main():
    args = arguments()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # The same model on every rank, other dropout masks on each.
    torch.manual_seed(args.seed)
    data = HelpTopics(args.window, args.stride)
    model = DistributedDataParallel(
        CharTransformer(data.alphabet_size, args.window, args.width, args.layers, heads=4, dropout=0.1)
    )
    torch.manual_seed(args.seed + 1 + rank)
    random.seed(args.seed + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / args.steps))
    )
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    log = Path(f"{args.log}.rank{rank}.jsonl") if args.log else None

    # A restarted job goes on counting where it stood; without a backend that restores state this is 0.
    step = int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0"))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for sample_ids, inputs, targets in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if log is not None:
                entry = {"step": step, "epoch": epoch, "loss": loss.item().hex(), "samples": sample_ids.tolist()}
                with log.open("a") as lines:
                    lines.write(json.dumps(entry) + "\n")
            if rank == 0 and step % 20 == 0:
                print(f"step {step:5d}  epoch {epoch}  loss {loss.item():.4f}", flush=True)
            if step >= args.steps:
                break
        if step >= args.steps:
            break

    if args.final:
        torch.save(
            {
                "step": step,
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "torch_rng": torch.get_rng_state(),
                "python_rng": random.getstate(),
            },
            f"{args.final}.rank{rank}.pt",
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
