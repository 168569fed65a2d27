"""Trains a very small GPT with Megatron Core: its own model, parallel groups, optimizer and schedule in a short loop.

    torchrun --nproc-per-node=2 docs/examples/megatron_gpt.py --tensor-parallel 2

Nothing of LM Resiliency is imported: the same script runs with any rendezvous backend.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WINDOW, WORDS = 16, 64


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    parser.add_argument("--distributed-optimizer", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="parameters in 16 bits, master parameters in 32")
    parser.add_argument("--micro-batches", type=int, default=1, help="of 4 samples, a step")
    parser.add_argument("--backend", default="gloo" if not torch.cuda.is_available() else "nccl")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds to sleep after each step, to watch it")
    parser.add_argument("--log-file", dest="log", help="append one JSON line a step to LOG_FILE.rankN.jsonl")
    parser.add_argument("--final", help="save what this rank holds to FINAL.rankN.pt at the end")
    return parser.parse_args()


def build(args):
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        tensor_model_parallel_size=args.tensor_parallel,
        pipeline_model_parallel_size=args.pipeline_parallel,
        pipeline_dtype=torch.bfloat16 if args.bf16 else torch.float32,
        bf16=args.bf16,
        params_dtype=torch.bfloat16 if args.bf16 else torch.float32,
        finalize_model_grads_func=finalize_model_grads,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=WORDS,
        max_sequence_length=WINDOW,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    )
    model = Float16Module(config, model) if args.bf16 else model
    model.cuda(torch.cuda.current_device()) if torch.cuda.is_available() else None
    sharded = args.distributed_optimizer
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=sharded, overlap_grad_reduce=False)
    model = DistributedDataParallel(config, ddp, model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=3e-3,
            min_lr=1e-4,
            weight_decay=0.01,
            bf16=args.bf16,
            use_distributed_optimizer=sharded,
        ),
        [model],
    )
    scheduler = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=3e-3,
        min_lr=1e-4,
        lr_warmup_steps=5,
        lr_decay_steps=args.steps,
        lr_decay_style="cosine",
        start_wd=0.01,
        end_wd=0.01,
        wd_incr_steps=args.steps,
        wd_incr_style="constant",
    )
    return model, optimizer, scheduler


def held(optimizer):
    """What the torch optimizers inside hold, in order."""
    return [[dict(s) for s in one.optimizer.state.values()] for one in optimizer.chained_optimizers]


def endless(loader, sampler):
    """Batches, epoch after epoch."""
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def forward(batches, model):
    """One micro-batch on this stage, and what makes a loss of what the last stage gives out."""
    (batch,) = next(batches)
    positions = torch.arange(WINDOW).unsqueeze(0)
    hidden = torch.ones(1, 1, WINDOW, WINDOW, dtype=torch.bool).triu(1)
    return model(batch[:, :-1], positions, hidden, labels=batch[:, 1:]), loss_of


def loss_of(output):
    loss = output.float().mean()
    return loss, {"loss": loss.detach()}


def main():
    args = arguments()
    dist.init_process_group(args.backend)
    rank = dist.get_rank()
    parallel_state.initialize_model_parallel(args.tensor_parallel, args.pipeline_parallel)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    torch.manual_seed(7)
    tokens = torch.randint(WORDS, (256, WINDOW + 1))
    model, optimizer, scheduler = build(args)
    parts, part = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    sampler = DistributedSampler(tokens, num_replicas=parts, rank=part, seed=3)
    loader = DataLoader(TensorDataset(tokens), batch_size=4, sampler=sampler, drop_last=True)
    forward_backward = get_forward_backward_func()
    log = Path(f"{args.log}.rank{rank}.jsonl") if args.log else None

    # A restarted job goes on counting where it stood; without a backend that restores state this is 0.
    batches = endless(loader, sampler)
    for step in range(int(os.environ.get("LM_RESILIENCY_RESUME_STEP", "0")) + 1, args.steps + 1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward,
            data_iterator=batches,
            model=[model],
            num_microbatches=args.micro_batches,
            seq_length=WINDOW,
            micro_batch_size=4,
        )
        optimizer.step()
        scheduler.step(increment=1)
        if log is not None:
            loss = [one["loss"].item().hex() for one in losses]  # the last stage has them
            with log.open("a") as lines:
                lines.write(json.dumps({"step": step, "loss": loss}) + "\n")
        time.sleep(args.pace)

    if args.final:
        torch.save(
            {
                "model": [p.detach() for p in model.parameters()],
                "optimizer": held(optimizer),
                "scheduler": scheduler.state_dict(),
                "tracker": dict(tensor_parallel.get_cuda_rng_tracker().get_states()),
                "rng": torch.get_rng_state(),
            },
            f"{args.final}.rank{rank}.pt",
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
