"""Parameters of which a rank holds a part: DTensor in general, `fully_shard` (FSDP2, HSDP) in particular.

A shard holds the local part as a plain tensor. Equal on several ranks is only what a data-parallel reduction keeps so:
DDP's parameters and the replicated dimension of a hybrid-sharded or replicated module. What tensor parallelism merely
places on every rank is computed by each for itself and is not compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import nn

from lmr.integrations.gemini.errors import ShardMismatch


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


def topology(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, Any]:
    """What says which part of the whole a rank's state is: the number of ranks, and a digest of meshes and placements.

    Two ranks of other places in a mesh may hold parts of equal shape; only this tells them apart.

    Args:
        named: names and tensors, DTensors among them.
    """
    parts, meshes = [], dict[int, Any]()
    module = sys.modules.get("torch.distributed.tensor")
    if module is not None:
        for name, tensor in named:
            if isinstance(tensor, module.DTensor):
                mesh: Any = tensor.device_mesh
                ranks = meshes.setdefault(id(mesh), mesh.mesh.tolist())
                parts.append([name, [str(one) for one in tensor.placements], list(tensor.shape), ranks])
    world_size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    return {"world_size": world_size, "digest": xxhash.xxh3_128_hexdigest(json.dumps(parts).encode())}


def match_topology(captured: dict[str, Any], here: dict[str, Any]) -> None:
    """State goes back only to where it came from.

    Raises:
        ShardMismatch: `topology_mismatch`: other ranks, meshes or placements.
    """
    if captured["world_size"] != here["world_size"]:
        ranks = f"captured on {captured['world_size']} ranks, restored on {here['world_size']}"
        raise ShardMismatch("topology_mismatch", f"{ranks}: state is not resharded")
    if captured["digest"] != here["digest"]:
        raise ShardMismatch(
            "topology_mismatch",
            "the meshes or placements of distributed parameters have changed: state is not resharded",
        )
