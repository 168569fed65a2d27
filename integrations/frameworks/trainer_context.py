"""What a trainer knows about itself before any framework is loaded. Read once, at the edge."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from lmr.integrations.torchrun.worker_page import WorkerPage


@dataclass(frozen=True)
class TrainerContext:
    """Identity, sockets and policy of this trainer."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    generation: int
    resume_step: int
    agent_socket: str
    vault_socket: str | None
    interval: int
    enable_checkpoint: bool
    enable_detection: bool
    checkpoint: dict[str, Any]
    replay: dict[str, Any]
    page: WorkerPage

    @property
    def slot(self) -> int:
        """The logical node position that owns this rank."""
        return self.rank // self.local_world_size


_current: TrainerContext | None = None


def enter(page: WorkerPage) -> TrainerContext:
    """Read the environment the node runtime gave this worker."""
    global _current
    env = os.environ
    policy = json.loads(env.get("LMR_WORKER_POLICY", "{}"))
    _current = TrainerContext(
        rank=int(env["RANK"]),
        local_rank=int(env.get("LOCAL_RANK", "0")),
        world_size=int(env["WORLD_SIZE"]),
        local_world_size=int(env.get("LOCAL_WORLD_SIZE", "1")),
        generation=int(env.get("LM_RESILIENCY_GENERATION", "0")),
        resume_step=int(env.get("LM_RESILIENCY_RESUME_STEP", "0")),
        agent_socket=env["LMR_AGENT_SOCKET"],
        vault_socket=env.get("LMR_VAULT_SOCKET"),
        interval=int(policy.get("interval", 1)),
        enable_checkpoint=bool(policy.get("enable_checkpoint", True)),
        enable_detection=bool(policy.get("enable_detection", True)),
        checkpoint=dict(policy.get("checkpoint", {})),
        replay=dict(policy.get("replay", {})),
        page=page,
    )
    return _current


def current() -> TrainerContext | None:
    """This trainer's context; None outside a supervised worker."""
    return _current
