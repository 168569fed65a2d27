"""Trains a small model in a loop of its own with Hugging Face Accelerate.

    torchrun --nproc-per-node=2 docs/examples/accelerate_loop.py

Nothing of LM Resiliency is imported: the same script runs with any rendezvous backend.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    """Samples that are a little different each time they are loaded."""

    def __init__(self):
        draw = torch.Generator().manual_seed(7)
        self.inputs, self.targets = torch.randn(230, 16, generator=draw), torch.randn(230, 1, generator=draw)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index] + 0.1 * torch.randn(16), self.targets[index]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep after each step, to watch it")
    parser.add_argument("--log-file", dest="log", help="append one JSON line a step to LOG_FILE.rankN.jsonl")
    parser.add_argument("--final", help="save what this rank holds to FINAL.rankN.pt at the end")
    return parser.parse_args()


def main():
    args = arguments()
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=args.accumulate)
    rank = accelerator.process_index
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps * accelerator.num_processes)
    loader = DataLoader(Data(), batch_size=4, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    torch.manual_seed(100 + rank)
    log = Path(f"{args.log}.rank{rank}.jsonl") if args.log else None

    # A restarted job goes on counting where it stood; without a backend that restores state this is 0.
    step = int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0"))
    while step < args.steps:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            step += 1
            if log is not None:
                with log.open("a") as lines:
                    lines.write(json.dumps({"step": step, "loss": loss.item().hex()}) + "\n")
            time.sleep(args.pace)
            if step >= args.steps:
                break

    if args.final:
        torch.save(
            {
                "model": [p.detach() for p in model.parameters()],
                "optimizer": [dict(state) for state in optimizer.optimizer.state.values()],
                "scheduler": scheduler.scheduler.state_dict(),
                "passes": loader.iteration,
                "rng": torch.get_rng_state(),
            },
            f"{args.final}.rank{rank}.pt",
        )
    accelerator.end_training()


if __name__ == "__main__":
    main()
