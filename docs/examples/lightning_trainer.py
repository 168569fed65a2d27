"""Trains a small model with Lightning.

    torchrun --nproc-per-node=2 docs/examples/lightning_trainer.py

Nothing of LM Resiliency is imported: the same script runs with any rendezvous backend.
"""

import argparse
import gc
import json
import os
import time
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    """A few layers with dropout; the learning rate follows the mean loss of each epoch."""

    def __init__(self, width=48):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, 1))

    def training_step(self, batch, _batch_number):
        inputs, labels = batch
        loss = nn.functional.mse_loss(self.layers(inputs), labels)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _batch_number):
        inputs, labels = batch
        self.log("score", nn.functional.mse_loss(self.layers(inputs), labels), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss_epoch"}}


class Log(lightning.Callback):
    """Appends one JSON line a step, and takes its time if told to."""

    def __init__(self, path, pace):
        self.path, self.pace, self.means = path, pace, []

    def state_dict(self):
        return {"means": self.means}

    def load_state_dict(self, state_dict):
        self.means = list(state_dict["means"])

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.fit_loop._should_accumulate():
            return
        if self.path is not None:
            with self.path.open("a") as lines:
                lines.write(json.dumps({"step": trainer.global_step, "loss": outputs["loss"].item().hex()}) + "\n")
        time.sleep(self.pace)

    def on_train_epoch_end(self, trainer, module):
        self.means.append({name: float(value) for name, value in sorted(trainer.callback_metrics.items())})


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep after each step, to watch it")
    parser.add_argument("--log-file", dest="log", help="append one JSON line a step to LOG_FILE.rankN.jsonl")
    parser.add_argument("--final", help="save what this rank holds to FINAL.rankN.pt at the end")
    return parser.parse_args()


def train():
    args = arguments()
    rank, local = os.environ["RANK"], int(os.environ["LOCAL_WORLD_SIZE"])
    draw = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(230, 16, generator=draw), torch.randn(230, 1, generator=draw))
    torch.manual_seed(7)
    model = Model()
    log = Log(Path(f"{args.log}.rank{rank}.jsonl") if args.log else None, args.pace)
    trainer = lightning.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy="ddp" if int(os.environ["WORLD_SIZE"]) > 1 else "auto",
        devices=local,
        num_nodes=int(os.environ["WORLD_SIZE"]) // local,
        max_steps=args.steps,
        accumulate_grad_batches=args.accumulate,
        callbacks=[log],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=32))
    if args.final:
        torch.save(
            {
                "model": [p.detach() for p in model.parameters()],
                "optimizer": [dict(s) for s in trainer.optimizers[0].state.values()],
                "scheduler": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
                "means": log.means,
                "epoch": trainer.current_epoch,
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
