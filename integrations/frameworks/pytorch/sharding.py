"""Parameters of which a rank holds a part: DTensor in general, `fully_shard` (FSDP2, HSDP) in particular.

A shard holds the local part as a plain tensor. Equal on several ranks is only what a data-parallel reduction keeps so:
DDP's parameters and the replicated dimension of a hybrid-sharded or replicated module. What tensor parallelism merely
places on every rank is computed by each for itself and is not compared.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def peers(root: nn.Module) -> list[tuple[list[torch.Tensor], list[int]]]:
    """Parameters that `fully_shard` or `replicate` keeps equal on several ranks, and those ranks, group by group."""
    if "torch.distributed.fsdp" not in sys.modules:
        return []
    from torch.distributed.fsdp import FSDPModule

    found = []
    for module in root.modules():
        if not isinstance(module, FSDPModule):
            continue
        # Private in torch 2.13, so untyped here; without it nothing is compared, and nothing else changes.
        state: Any = module
        for group in getattr(state._get_fsdp_state(), "_fsdp_param_groups", []):
            replicas = getattr(group.mesh_info, "replicate_process_group", None)
            if replicas is not None and dist.get_world_size(replicas) > 1:
                parameters = [one.sharded_param for one in group.fsdp_params]
                found.append((parameters, sorted(dist.get_process_group_ranks(replicas))))
    return found
