"""The `[checkpoint]` table of the worker policy."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from lmr.integrations.gemini.pace import Mode


class CheckpointPolicy(BaseModel):
    """How training state is kept in memory. Whole numbers only, so that equal policies have equal bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    replicas: int = Field(1, ge=0, le=8, description="copies of each slot's state in other nodes' memory")
    buffers: int = Field(
        4,
        ge=3,
        le=16,
        description="memory buffers a rank: the retained step, the one in flight, the newest, the one being written",
    )
    replica_copies: int = Field(
        3, ge=2, le=8, description="steps of another slot that are held: retained, in flight, and the one before"
    )
    standby_slots: int = Field(
        4,
        ge=0,
        le=64,
        description="slots whose state each standby holds besides, so that a replacement finds its shard at home",
    )
    memory_max_bytes: int | None = Field(
        None,
        ge=1024 * 1024,
        description="the most memory one node's vault may take; null: what the machine or its control group can give",
    )
    require_finite: bool = Field(
        True,
        description="a step whose trained state holds not-a-number or infinity is neither certified nor restored",
    )
    copy_mode: Mode = Field(
        "auto",
        description="copy at the boundary (foreground) or during forward and backward (background); auto measures",
    )
    orphan_s: int = Field(
        300, ge=1, description="seconds a vault keeps its memory after its agent went away, for an agent that returns"
    )
    transfer_timeout_s: int = Field(
        30, ge=1, description="seconds without a byte after which a transfer between vaults is broken and begun again"
    )
    transfer_attempts: int = Field(
        5, ge=1, description="how often a broken transfer is begun again before it is given up"
    )
    chunk_bytes: int = Field(
        4 * 1024 * 1024,
        ge=64 * 1024,
        le=8 * 1024 * 1024,
        description="how much state a vault hands to a connection at once",
    )
    restore_wait_s: int = Field(
        900, ge=1, description="seconds a trainer waits until all ranks agree before it reports the restore as failed"
    )
    disk_folder: str | None = Field(
        None, min_length=1, description="folder on each node's disk for older steps, which outlive the job; null: none"
    )
    disk_every_s: int = Field(
        60, ge=0, description="least seconds between two steps that go to disk: bounds what it writes, and what is lost"
    )
    disk_keep: int = Field(
        2, ge=2, le=64, description="steps kept on disk: one, and the one before while nodes still write the next"
    )
    durable: bool = Field(
        True,
        description="follow the script's torch.distributed.checkpoint saves: what they lack to restart the very step"
        " goes along, and they are restored from when nothing else is left",
    )
    grace_s: int = Field(
        10,
        ge=0,
        le=600,
        description="most seconds a node that is told to end saves its state for; below what the scheduler waits before"
        " it kills (Kubernetes and Slurm: 30)",
    )
