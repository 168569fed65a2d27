"""Every framework and mode that is to be shown; the table in the documentation has a row for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """One way a framework trains.

    Args:
        framework: as users call it.
        name: the mode, with its ranks.
        attaches: where the adapter attaches.
        peers: what data-parallel peers hold alike, and compare.
        shim: it runs on a CPU by replacing devices only.
    """

    framework: str
    name: str
    attaches: str
    peers: str
    shim: bool = False


_FIRST = "first iteration"

MODES = {
    "ddp": Mode("PyTorch", "DDP, 3 ranks", _FIRST, "all ranks"),
    "amp": Mode("PyTorch", "DDP, bf16 autocast, `GradScaler` that skips, accumulation 2, 2 ranks", _FIRST, "all ranks"),
    "fsdp2": Mode("PyTorch", "FSDP2 (`fully_shard`), 2 ranks", _FIRST, "none"),
    "hsdp": Mode("PyTorch", "HSDP, 2 x 2 ranks", _FIRST, "replicas of a part"),
    "tp": Mode("PyTorch", "tensor parallel by DTensor, 2 ranks", _FIRST, "none"),
    "single": Mode("PyTorch", "single process", _FIRST, "none"),
    "zero0": Mode("DeepSpeed", "ZeRO 0, fp32, 2 ranks", "`deepspeed.initialize`", "parameters and optimizer"),
    "zero1": Mode("DeepSpeed", "ZeRO 1, fp32, 3 ranks", "`deepspeed.initialize`", "parameters"),
    "zero2": Mode("DeepSpeed", "ZeRO 2, bf16, accumulation 2, 2 ranks", "`deepspeed.initialize`", "parameters"),
    "zero2-fp16": Mode("DeepSpeed", "ZeRO 2, fp16 with overflows, 2 ranks", "`deepspeed.initialize`", "parameters"),
    "zero3": Mode("DeepSpeed", "ZeRO 3, fp32, 2 ranks", "`deepspeed.initialize`", "none"),
    "megatron-tp": Mode("Megatron Core", "tensor parallel 2, dropout", "`get_megatron_optimizer`", "none", shim=True),
    "megatron-pp": Mode("Megatron Core", "pipeline parallel 2", "`get_megatron_optimizer`", "none", shim=True),
    "megatron-tp-dp": Mode(
        "Megatron Core",
        "tensor parallel 2 x data parallel 2",
        "`get_megatron_optimizer`",
        "parameters and optimizer, of one part",
        shim=True,
    ),
    "megatron-dp": Mode(
        "Megatron Core", "data parallel 3", "`get_megatron_optimizer`", "parameters and optimizer", shim=True
    ),
    "megatron-sharded": Mode(
        "Megatron Core", "data parallel 2, distributed optimizer", "`get_megatron_optimizer`", "parameters", shim=True
    ),
    "megatron-bf16": Mode(
        "Megatron Core",
        "data parallel 2, distributed optimizer, bf16",
        "`get_megatron_optimizer`",
        "parameters",
        shim=True,
    ),
    "titan": Mode("TorchTitan", "llama3 debug model, FSDP2, 2 ranks", "`CheckpointManager`", "none", shim=True),
    "huggingface": Mode(
        "Hugging Face Trainer", "DDP, accumulation 2, 2 ranks", "`Trainer._prepare_for_training`", "all ranks"
    ),
    "accelerate": Mode("Accelerate", "a loop of one's own, DDP, accumulation 2, 2 ranks", _FIRST, "all ranks"),
    "lightning": Mode("Lightning", "DDP, accumulation 2, 2 ranks", "`Trainer.fit`", "all ranks"),
    "lightning-single": Mode("Lightning", "single process", "`Trainer.fit`", "none"),
    "fifth": Mode("any other", "the adapter of adapters.md, DDP, 2 ranks", "its own", "all ranks"),
}
"""By the name tests use."""
