"""For tests only: runs TorchTitan's own trainer on a machine without a GPU, with a log and a final state to compare.

    torchrun ... tests/frameworks_matrix/shims/torchtitan_on_cpu.py --steps 40 --log-file LOG --final FINAL

The device type becomes "cpu" and gloo sums where NCCL would scale and sum in one. What runs here says nothing about a
real device. The training is `torchtitan.train.Trainer`, its configuration a file made here.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--pace", type=float, default=0.0)
parser.add_argument("--log-file", dest="log", required=True)
parser.add_argument("--final", required=True)
parser.add_argument("--assets", required=True, help="folder with a tokenizer and a data set")
parser.add_argument("--checkpoints", required=True, help="folder of TorchTitan's own checkpoints")
args = parser.parse_args()

torch.cpu.set_device = lambda device: None
torch.cpu.get_device_name = lambda device=None: "cpu"
torch.cpu.get_device_properties = lambda device=None: argparse.Namespace(total_memory=1 << 34, name="cpu")
for name in ("reset_peak_memory_stats", "empty_cache", "memory_stats", "synchronize"):
    setattr(torch.cpu, name, lambda *_a, **_k: {})

torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda _kind: torch.cpu

import torchtitan.train as train  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.config import ConfigManager  # noqa: E402

train.dist_utils.set_pg_timeouts = lambda **_named: None  # a barrier over numbered devices


def configuration():
    assets = Path(args.assets)
    return ConfigManager().parse_args(
        [
            "--model.name=llama3",
            "--model.flavor=debugmodel",
            f"--model.hf_assets_path={assets / 'tokenizer'}",
            "--training.dataset=c4_test",
            f"--training.dataset_path={assets / 'c4_test'}",
            "--training.local_batch_size=2",
            "--training.seq_len=64",
            f"--training.steps={args.steps}",
            "--metrics.log_freq=1000",
            "--lr_scheduler.warmup_steps=4",
            "--optimizer.implementation=for-loop",
            "--debug.seed=7",
            "--checkpoint.enable",
            f"--job.dump_folder={args.checkpoints}",
            "--checkpoint.interval=12",
            "--checkpoint.keep_latest_k=0",
        ]
    )


def main():
    trainer = train.Trainer(configuration())
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    log = Path(f"{args.log}.rank{os.environ['RANK']}.jsonl")
    step_of = trainer.train_step
    forward_backward = trainer.forward_backward_step
    losses = []

    def looking(*a, **k):
        losses.append(forward_backward(*a, **k))
        return losses[-1]

    def logged(*a, **k):
        step_of(*a, **k)
        with log.open("a") as lines:
            lines.write(json.dumps({"step": trainer.step, "loss": losses[-1].item().hex()}) + "\n")
        time.sleep(args.pace)

    trainer.forward_backward_step, trainer.train_step = looking, logged
    trainer.train()
    torch.save(
        {
            "model": [p.to_local().detach() for m in trainer.model_parts for p in m.parameters()],
            "optimizer": [
                {k: v.to_local() if hasattr(v, "to_local") else v for k, v in state.items()}
                for one in trainer.optimizers.optimizers
                for state in one.state.values()
            ],
            "schedulers": trainer.lr_schedulers.state_dict(),
            "trainer": trainer.state_dict(),
        },
        f"{args.final}.rank{os.environ['RANK']}.pt",
    )
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
