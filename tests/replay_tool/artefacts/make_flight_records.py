"""Writes flight records of the shape PyTorch dumps: rank 2 never issues the all_reduce #311 that the others wait in."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

NS = 1_795_918_400_000_000_000


def entry(seq: int, op: str, state: str) -> dict[str, Any]:
    return {
        "frames": [{"name": "all_reduce", "filename": "/workspace/train.py", "line": 398}],
        "record_id": seq, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": f"nccl:{op}", "time_created_ns": NS + seq * 1_000_000_000,
        "input_sizes": [[1024, 1024]], "input_dtypes": ["Float"], "output_sizes": [[1024, 1024]],
        "output_dtypes": ["Float"],
        "state": state, "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        "retired": state == "completed", "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip


def record(rank: int, *, behind: int = 2, odd: int | None = None) -> dict[str, Any]:
    """One rank's record. `behind` lags one collective; `odd` issues another one at #310."""
    seqs = range(308, 311 if rank == behind else 313)
    entries = [
        entry(
            seq, "broadcast" if rank == odd and seq == 310 else "all_reduce", "completed" if seq < 311 else "scheduled"
        )
        for seq in seqs
    ]
    status = {"last_enqueued_collective": seqs[-1], "last_started_collective": 310, "last_completed_collective": 310}
    return {
        "version": "2.10", "entries": entries, "pg_status": {"0": status},
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
    }  # fmt: skip


def write(folder: Path, *, behind: int = 2, odd: int | None = None, ranks: int = 4) -> list[Path]:
    """`nccl_trace_rank_N` of each rank, pickled as PyTorch does."""
    paths = [folder / f"nccl_trace_rank_{rank}" for rank in range(ranks)]
    for rank, path in enumerate(paths):
        path.write_bytes(pickle.dumps(record(rank, behind=behind, odd=odd)))
    return paths
