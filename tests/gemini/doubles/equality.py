"""Bitwise comparison of what two runs of a script left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


def read_log(path: Path) -> dict[int, dict[str, Any]]:
    """Step to entry; a step that was repeated after a rollback counts as it was done last."""
    entries = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        entries[entry["step"]] = entry
    return entries


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two trees of values and tensors are not bit for bit the same."""
    if type(one) is not type(other):
        return [f"{path}: {type(one).__name__} and {type(other).__name__}"]
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        raw = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
        return [] if same and torch.equal(*raw) else [f"{path}: tensors differ"]
    if isinstance(one, dict):
        keys = [] if one.keys() == other.keys() else [f"{path}: keys {one.keys() ^ other.keys()}"]
        return keys + [d for k in one.keys() & other.keys() for d in differences(one[k], other[k], f"{path}.{k}")]
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return [f"{path}: lengths {len(one)} and {len(other)}"]
        return [d for i, (a, b) in enumerate(zip(one, other, strict=True)) for d in differences(a, b, f"{path}[{i}]")]
    return [] if one == other or (one != one and other != other) else [f"{path}: {one!r} and {other!r}"]


def assert_same_run(reference: Path, recovered: Path, rank: int) -> None:
    """Every step's entry, and everything at the end, bit for bit."""
    logs = [read_log(Path(f"{prefix}.rank{rank}.jsonl")) for prefix in (reference, recovered)]
    assert logs[0].keys() == logs[1].keys(), f"rank {rank}: steps {logs[0].keys() ^ logs[1].keys()}"
    odd = [step for step in logs[0] if logs[0][step] != logs[1][step]]
    assert not odd, f"rank {rank}: first differing step {odd[0]}: {logs[0][odd[0]]} and {logs[1][odd[0]]}"
    finals = [torch.load(f"{prefix}.rank{rank}.pt", weights_only=False) for prefix in (reference, recovered)]
    assert differences(*finals) == []
