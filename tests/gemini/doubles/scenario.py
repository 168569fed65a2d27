"""A run on doubled nodes that loses its workers at a given step, and the same run left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from equality import assert_same_run
from node_double import NodeDouble, free_port


def reference(script: list[str], folder: Path, world_size: int) -> Path:
    """The run without any of our software in it; returns the prefix of what it left."""
    prefix, port = folder / "reference", free_port()
    processes = []
    for rank in range(world_size):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        argv = [sys.executable, *script, "--log-file", str(prefix), "--final", str(prefix)]
        processes.append(subprocess.Popen(argv, env=env, stderr=subprocess.PIPE))
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    return prefix


class Scenario:
    """Nodes of two ranks (or one), each replicating to the next, running one script."""

    def __init__(self, script: list[str], folder: Path, nodes: int, local: int, **policy: Any) -> None:
        self.folder = folder
        self.prefix = folder / "recovered"
        self.script = [*script, "--log-file", str(self.prefix), "--final", str(self.prefix)]
        self.local = local
        self.world_size = nodes * local
        self.nodes = [NodeDouble(f"node-{i}", folder, policy) for i in range(nodes)]
        self.spares: list[NodeDouble] = []
        for node in self.nodes:
            node.adopt()

    def ranks(self, slot: int) -> list[int]:
        return list(range(slot * self.local, (slot + 1) * self.local))

    def spare(self) -> NodeDouble:
        node = NodeDouble(f"spare-{len(self.spares)}", self.folder, self.nodes[0].policy)
        self.spares.append(node)
        node.adopt()
        return node

    def start(self, generation: int = 0, step: int = 0, holders: dict[int, NodeDouble] | None = None) -> None:
        """Enter a generation on all nodes, load, and launch the workers."""
        port, count = free_port(), len(self.nodes)
        seen = [len(node.vault_says.messages) for node in self.nodes]
        for slot, node in enumerate(self.nodes):
            partner = [self.nodes[(slot + 1) % count]] if count > 1 else []
            holder = (holders or {}).get(slot, node)
            tier = "memory" if holder is node else "replica"
            node.enter(generation, slot, self.ranks(slot), step, partner, holder, tier)
        if step:
            for node, after in zip(self.nodes, seen, strict=True):
                node.vault_says.wait(after=after, kind="restorable", generation=generation, step=step)
        for slot, node in enumerate(self.nodes):
            node.launch(self.script, self.ranks(slot), self.world_size, port, generation, step)
            node.tell({"kind": "load", "generation": generation})

    def pin(self, step: int) -> None:
        for node in self.nodes:
            node.tell({"kind": "pin", "step": step})

    def wait_complete(self, step: int, timeout_s: float = 60.0) -> None:
        """Every slot's capture of the step is published, and replicated if there is anywhere to."""
        for node in self.nodes:
            node.wait_fact("checkpoint_captured", timeout_s, step=step)
            if len(self.nodes) > 1:
                node.wait_fact("checkpoint_replicated", timeout_s, step=step)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop_workers()

    def finish(self, generation: int) -> None:
        for slot, node in enumerate(self.nodes):
            for done in node.finish(self.ranks(slot), generation):
                assert done["exit_code"] == 0, node.output(generation, done["rank"])

    def assert_same_as(self, prefix: Path) -> None:
        for rank in range(self.world_size):
            assert_same_run(prefix, self.prefix, rank)

    def close(self) -> None:
        for node in self.nodes + self.spares:
            node.close()
