"""Trains a small model with the Hugging Face Trainer.

    torchrun --nproc-per-node=2 docs/examples/huggingface_trainer.py

Nothing of LM Resiliency is imported: the same script runs with any rendezvous backend.
"""

import argparse
import gc
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Model(nn.Module):
    """A few layers with dropout; the loss is part of the forward pass, as the Trainer expects."""

    def __init__(self, width=48):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, 1))
        self.loss = None

    def forward(self, inputs, labels):
        self.loss = nn.functional.mse_loss(self.layers(inputs), labels)
        return {"loss": self.loss}


class Data(torch.utils.data.Dataset):
    """Random samples, the same on every rank."""

    def __init__(self):
        draw = torch.Generator().manual_seed(7)
        self.inputs, self.labels = torch.randn(230, 16, generator=draw), torch.randn(230, 1, generator=draw)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Log(TrainerCallback):
    """Appends one JSON line a step, and takes its time if told to."""

    def __init__(self, model, path, pace):
        self.model, self.path, self.pace = model, path, pace

    def on_step_end(self, args, state, control, **kwargs):
        if self.path is not None:
            with self.path.open("a") as lines:
                lines.write(json.dumps({"step": state.global_step, "loss": self.model.loss.item().hex()}) + "\n")
        time.sleep(self.pace)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    parser.add_argument("--save-every", type=int, default=0, help="steps between checkpoints of its own")
    parser.add_argument("--output", default="out/huggingface", help="folder of those")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep after each step, to watch it")
    parser.add_argument("--log-file", dest="log", help="append one JSON line a step to LOG_FILE.rankN.jsonl")
    parser.add_argument("--final", help="save what this rank holds to FINAL.rankN.pt at the end")
    return parser.parse_args()


def train():
    args = arguments()
    rank = os.environ["RANK"]
    settings = TrainingArguments(
        output_dir=args.output,
        max_steps=args.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=args.accumulate,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        logging_steps=7,
        save_strategy="steps" if args.save_every else "no",
        save_steps=args.save_every or 1,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
    )
    torch.manual_seed(7)
    model = Model()
    log = Path(f"{args.log}.rank{rank}.jsonl") if args.log else None
    trainer = Trainer(model=model, args=settings, train_dataset=Data(), callbacks=[Log(model, log, args.pace)])
    last = get_last_checkpoint(args.output) if Path(args.output).exists() else None
    trainer.train(resume_from_checkpoint=last)
    if args.final:
        timeless = [
            {k: v for k, v in entry.items() if not k.startswith("train_")} for entry in trainer.state.log_history
        ]
        torch.save(
            {
                "model": [p.detach() for p in model.parameters()],
                "optimizer": [dict(s) for s in trainer.optimizer.optimizer.state.values()],
                "scheduler": trainer.lr_scheduler.state_dict(),
                "history": timeless,
                "rng": torch.get_rng_state(),
            },
            f"{args.final}.rank{rank}.pt",
        )


def main():
    train()
    # What DistributedDataParallel holds of the process group goes first: freed after it, it may keep torch from ending.
    gc.collect()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
