"""Trains a small model with DeepSpeed, at any ZeRO stage.

    torchrun --nproc-per-node=2 docs/examples/deepspeed_zero.py --stage 3

Nothing of LM Resiliency is imported: the same script runs with any rendezvous backend.
"""

import argparse
import json
import time
from pathlib import Path

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Model(nn.Module):
    """A few residual layers; the loss is part of the forward pass."""

    def __init__(self, width=48):
        super().__init__()
        self.enter, self.leave = nn.Linear(16, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(3)
        )

    def forward(self, inputs, targets):
        x = self.enter(inputs)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.mse_loss(self.leave(x).float(), targets.float())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, choices=range(4), default=1)
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches a step")
    parser.add_argument("--checkpoints", help="folder of DeepSpeed's own checkpoints, loaded at the start")
    parser.add_argument("--save-every", type=int, default=25, help="steps between them")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep after each step, to watch it")
    parser.add_argument("--log-file", dest="log", help="append one JSON line a step to LOG_FILE.rankN.jsonl")
    parser.add_argument("--final", help="save what this rank holds to FINAL.rankN.pt at the end")
    return parser.parse_args()


def config(args):
    settings = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": args.accumulate,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": True}},
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_num_steps": 10, "warmup_max_lr": 3e-3, "total_num_steps": args.steps},
        },
        "zero_optimization": {"stage": args.stage, "stage3_param_persistence_threshold": 100},
        "steps_per_print": 1_000_000,
    }
    if args.precision == "fp16":
        settings["fp16"] = {"enabled": True, "initial_scale_power": 24, "loss_scale_window": 20}
    elif args.precision == "bf16":
        settings["bf16"] = {"enabled": True}
    return settings


def held(optimizer):
    """Tensors of the optimizer that steps, in order."""
    while not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return [dict(state) for state in optimizer.state.values()]


def main():
    args = arguments()
    deepspeed.init_distributed("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(7)
    data = TensorDataset(torch.randn(512, 16), torch.randn(512, 1))
    model = Model()
    engine, optimizer, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=data, config=config(args)
    )
    if args.checkpoints:
        engine.load_checkpoint(args.checkpoints)
    torch.manual_seed(100 + rank)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
    log = Path(f"{args.log}.rank{rank}.jsonl") if args.log else None

    epoch = 0
    while engine.global_steps < args.steps:
        loader.data_sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = engine(inputs.to(dtype), targets)
            engine.backward(loss)
            boundary = engine.is_gradient_accumulation_boundary()
            engine.step()
            if not boundary:
                continue
            if log is not None:
                entry = {"step": engine.global_steps, "loss": loss.item().hex(), "skipped": engine.skipped_steps}
                with log.open("a") as lines:
                    lines.write(json.dumps(entry) + "\n")
            if args.checkpoints and engine.global_steps % args.save_every == 0:
                engine.save_checkpoint(args.checkpoints)
            time.sleep(args.pace)
            if engine.global_steps >= args.steps:
                break
        epoch += 1

    if args.final:
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
            parameters = [p.detach().clone() for p in engine.module.parameters()]
        torch.save(
            {
                "model": parameters,
                "optimizer": held(optimizer),
                "scheduler": engine.lr_scheduler.state_dict(),
                "counters": [engine.global_steps, engine.micro_steps, engine.skipped_steps, engine.global_samples],
                "rng": torch.get_rng_state(),
            },
            f"{args.final}.rank{rank}.pt",
        )
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
