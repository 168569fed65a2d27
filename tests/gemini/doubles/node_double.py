"""A double of the node runtime: the agent's side of the worker socket and of the vault, without torchrun or decider.

Everything below it is real: the vault process, the bootstrap, supervisors, trainers, gloo. What a committed plan would
say, the test says.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from lmr.integrations.torchrun import local_socket

ROOT = Path(__file__).resolve().parents[3]
BOOTSTRAP = ROOT / "integrations" / "torchrun" / "bootstrap"
SECRET = "5a" * 32


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Inbox:
    """Messages of one kind of peer, waited for by content."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._change = threading.Condition()

    def put(self, message: dict[str, Any]) -> None:
        with self._change:
            self.messages.append(message)
            self._change.notify_all()

    def wait(self, timeout_s: float = 30.0, after: int = 0, count: int = 1, **wanted: Any) -> list[dict[str, Any]]:
        """The first `count` messages that have these items."""
        deadline = time.monotonic() + timeout_s
        with self._change:
            while True:
                found = self.having(after, **wanted)
                if len(found) >= count:
                    return found[:count]
                if not self._change.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise AssertionError(f"no {count} x {wanted} in {self.messages[after:][-40:]}")

    def having(self, after: int = 0, **wanted: Any) -> list[dict[str, Any]]:
        return [m for m in self.messages[after:] if all(m.get(key) == value for key, value in wanted.items())]


class NodeDouble:
    """One node: a vault, and the workers of one slot at a time."""

    def __init__(self, name: str, folder: Path, policy: dict[str, Any] | None = None) -> None:
        self.name = name
        self.folder = folder
        self.policy = policy or {}
        unique = f"lmr-test-{os.getpid()}-{name}-{time.monotonic_ns()}"
        self.agent_socket, self.vault_socket = unique + "-a", unique + "-v"
        self.workers_say = Inbox()
        self.vault_says = Inbox()
        self.supervisors: dict[int, socket.socket] = {}
        self.workers: dict[int, subprocess.Popen[bytes]] = {}
        self.control: socket.socket | None = None
        self.port = 0
        self.held: list[dict[str, Any]] = []
        self._listener = local_socket.listen(self.agent_socket)
        threading.Thread(target=self._serve, daemon=True).start()
        self.vault = self._start_vault()

    # Vault -----------------------------------------------------------------------------------------------------

    def _start_vault(self) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            "LMR_RUN": "test-run",
            "LMR_NODE": self.name,
            "LMR_SECRET": SECRET,
            "LMR_VAULT_SOCKET": self.vault_socket,
            "LMR_VAULT_HOST": "127.0.0.1",
            "LMR_WORKER_POLICY": json.dumps(self.policy),
        }
        return subprocess.Popen([sys.executable, "-m", "lmr.integrations.gemini.vault"], env=env)

    def adopt(self) -> None:
        """Connect as the agent and wait until the vault is ready."""
        deadline = time.monotonic() + 20
        while True:
            try:
                control = local_socket.connect(self.vault_socket)
                break
            except OSError:
                assert time.monotonic() < deadline, "the vault does not start"
                time.sleep(0.02)
        self.control = control
        seen = len(self.vault_says.messages)
        threading.Thread(target=self._listen, args=(control, self.vault_says), daemon=True).start()
        self.tell({"kind": "hello", "role": "agent"})
        self.port = self.vault_says.wait(after=seen, kind="ready")[0]["port"]
        self.held = self.vault_says.wait(after=seen, kind="held")[0]["copies"]

    def tell(self, message: dict[str, Any]) -> None:
        assert self.control is not None
        local_socket.send(self.control, message)

    def enter(
        self,
        generation: int,
        slot: int | None,
        ranks: list[int],
        step: int = 0,
        replicate_to: list[NodeDouble] | None = None,
        holder: NodeDouble | None = None,
        tier: str = "memory",
        history: str = "test",
        head: dict[str, Any] | None = None,
    ) -> None:
        """Tell the vault about a generation; `holder` has the slot's copy."""
        source = {"slot": slot, "holder": (holder or self).name, "tier": tier, "host": None, "port": None}
        if holder is not None and holder is not self:
            source |= {"host": "127.0.0.1", "port": holder.port}
        peers = [{"node": n.name, "host": "127.0.0.1", "port": n.port} for n in replicate_to or []]
        self.tell(
            {
                "kind": "generation",
                "history": history,
                "head": head,
                "generation": generation,
                "slot": slot,
                "ranks": ranks,
                "replicate_to": peers,
                "checkpoint": {"step": step, "sources": [source]},
            }
        )

    def facts(self, type_: str, **data: Any) -> list[dict[str, Any]]:
        found = [m["data"] for m in self.vault_says.having(kind="fact", type=type_)]
        return [d for d in found if all(d.get(k) == v for k, v in data.items())]

    def wait_fact(self, type_: str, timeout_s: float = 30.0, **data: Any) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while not self.facts(type_, **data):
            assert time.monotonic() < deadline, f"no {type_} {data} in {self.vault_says.messages[-40:]}"
            time.sleep(0.01)
        return self.facts(type_, **data)[0]

    # Workers ---------------------------------------------------------------------------------------------------

    def launch(
        self,
        argv: list[str],
        ranks: list[int],
        world_size: int,
        master_port: int,
        generation: int = 0,
        resume_step: int = 0,
    ) -> None:
        """Start one supervised worker a rank, as torchrun would."""
        for local_rank, rank in enumerate(ranks):
            env = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(local_rank),
                "WORLD_SIZE": str(world_size),
                "LOCAL_WORLD_SIZE": str(len(ranks)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(master_port),
                "TORCHELASTIC_RUN_ID": "test-run",
                "OMP_NUM_THREADS": "1",
                "LM_RESILIENCY_GENERATION": str(generation),
                "LM_RESILIENCY_RESUME_STEP": str(resume_step),
                "LMR_AGENT_SOCKET": self.agent_socket,
                "LMR_VAULT_SOCKET": self.vault_socket,
                "LMR_WORKER_POLICY": json.dumps(self.policy),
                "PYTHONPATH": str(BOOTSTRAP),
            }
            output = (self.folder / f"{self.name}.g{generation}.r{rank}.out").open("wb")
            self.workers[rank] = subprocess.Popen(
                [sys.executable, "-u", *argv], env=env, stdout=output, stderr=output, start_new_session=True
            )
            output.close()

    def output(self, generation: int, rank: int) -> str:
        return (self.folder / f"{self.name}.g{generation}.r{rank}.out").read_text(errors="replace")

    def stepped(self, rank: int, at_least: int, generation: int, timeout_s: float = 60.0) -> None:
        """Wait until a rank has completed so many steps in this generation."""
        deadline = time.monotonic() + timeout_s
        while True:
            steps = [m["step"] for m in self.workers_say.having(kind="stepped", rank=rank, generation=generation)]
            if steps and steps[-1] >= at_least:
                return
            exits = self.workers_say.having(kind="exited", rank=rank, generation=generation)
            story = f"rank {rank} at {steps[-3:]}: {exits}\n{self.output(generation, rank)}"
            assert not exits, story
            assert time.monotonic() < deadline, story
            time.sleep(0.005)

    def trainer_pid(self, rank: int, generation: int) -> int:
        found = self.workers_say.wait(kind="hello", role="trainer", rank=rank, generation=generation)
        return int(found[-1]["pid"])

    def stop_workers(self) -> None:
        """What the node runtime does before a new generation: SIGKILL every worker's process group."""
        for worker in self.workers.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self.workers.clear()

    def finish(self, ranks: list[int], generation: int, timeout_s: float = 120.0) -> list[dict[str, Any]]:
        """Wait for the exits of these ranks and let their supervisors go."""
        exits = [self.workers_say.wait(timeout_s, kind="exited", rank=rank, generation=generation)[0] for rank in ranks]
        for rank in ranks:
            local_socket.send(self.supervisors[rank], {"kind": "exit", "code": exits[ranks.index(rank)]["exit_code"]})
            self.workers.pop(rank).wait(10)
        return exits

    def close(self) -> None:
        """The node is gone, its memory with it."""
        self.stop_workers()
        self.vault.kill()
        self.vault.wait()
        self._listener.close()

    # Sockets ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._listen, args=(sock, self.workers_say), daemon=True).start()

    def _listen(self, sock: socket.socket, inbox: Inbox) -> None:
        while True:
            try:
                select.select([sock], [], [])
                received = local_socket.receive(sock)
            except (OSError, ValueError):
                return
            if received is None:
                return
            if received[0].get("role") == "supervisor":
                self.supervisors[received[0]["rank"]] = sock
            inbox.put(received[0])
