"""Compares what two runs of one training script left behind, bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def differences(one: Path, other: Path) -> list[str]:
    """Where two files written by `torch.save` differ, as dotted paths; empty when every bit is equal."""
    import torch

    a = torch.load(one, map_location="cpu", weights_only=False)
    b = torch.load(other, map_location="cpu", weights_only=False)
    return list(_differing(a, b, ""))


def _differing(a: Any, b: Any, path: str) -> list[str]:
    import torch

    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        same = a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(_bits(a), _bits(b)))
        return [] if same else [path]
    if isinstance(a, dict) and isinstance(b, dict):
        found = [f"{path}.{key}" for key in a.keys() ^ b.keys()]
        return found + [d for key in a.keys() & b.keys() for d in _differing(a[key], b[key], f"{path}.{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return [path]
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in _differing(x, y, f"{path}[{i}]")]
    return [] if type(a) is type(b) and repr(a) == repr(b) else [path]


def _bits(tensor: Any) -> Any:
    """The tensor's bytes, so that NaN equals the same NaN and 0.0 differs from -0.0."""
    import torch

    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def last_losses(log: Path) -> dict[int, str]:
    """The loss of every step in a rank's training log as a hex float; a repeated step's last entry counts."""
    losses = {}
    for line in log.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # a line cut by SIGKILL; its step was repeated
        losses[int(entry["step"])] = str(entry["loss"])
    return losses


def newest_step(log: Path) -> int:
    """The newest step in a rank's training log; 0 when there is none yet."""
    try:
        return max(last_losses(log), default=0)
    except OSError:
        return 0
