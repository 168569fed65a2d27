"""What vault tests have in common: nodes, captures, damage."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node_double import NodeDouble
from plain_trainer import PlainTrainer, content, vault_memory

MakeNode = Callable[..., NodeDouble]


def wait_until(true: Callable[[], Any], what: str, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def captured_pair(node: NodeDouble, step: int, generation: int = 0) -> list[PlainTrainer]:
    """Both ranks of slot 0 capture one pinned step."""
    trainers = [PlainTrainer(node.vault_socket, rank, generation) for rank in (0, 1)]
    node.tell({"kind": "pin", "step": step})
    for trainer in trainers:
        assert trainer.capture(step)
    node.wait_fact("checkpoint_captured", step=step, generation=generation)
    return trainers


def damage_one_byte(node: NodeDouble, rank: int, step: int) -> None:
    """Flip one byte of a rank's shard where the vault keeps it."""
    wanted = content(rank, step, 64 * 1024, 32 * 1024)
    for path in vault_memory(node.vault.pid):
        with Path(path).open("r+b") as memory:
            if memory.read(len(wanted)) == wanted:
                memory.seek(1000)
                memory.write(bytes([wanted[1000] ^ 1]))
                return
    raise AssertionError("the shard is not in the vault's memory")
