"""A vault with its agent's side, for the benchmark: real process, real sockets, no torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from lmr.integrations.torchrun import local_socket

SECRET = "62" * 32
_PATIENCE_S = 300.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class BenchNode:
    """One vault, driven as an agent drives it.

    Args:
        name: of the node.
        policy: the worker policy.
    """

    def __init__(self, name: str, policy: dict[str, Any]) -> None:
        self.name = name
        self.policy = policy
        unique = f"lmr-bench-{uuid.uuid4().hex[:12]}"
        self.agent_socket, self.vault_socket = unique + "-a", unique + "-v"
        self._listener = local_socket.listen(self.agent_socket)
        threading.Thread(target=self._drain, name="agent", daemon=True).start()
        environ = {"LMR_RUN": "bench", "LMR_NODE": name, "LMR_SECRET": SECRET, "LMR_VAULT_HOST": "127.0.0.1"}
        environ |= {"LMR_VAULT_SOCKET": self.vault_socket, "LMR_WORKER_POLICY": json.dumps(policy)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lmr.integrations.gemini.vault"],
            env={**os.environ, **environ},
            stderr=subprocess.DEVNULL,
        )
        self._control = self._connect()
        self.tell("hello", role="agent")
        self.port = int(self.hear("ready")["port"])

    def _connect(self) -> socket.socket:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return local_socket.connect(self.vault_socket)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _drain(self) -> None:
        """What trainers say to their agent is of no interest here, and must not fill their sockets."""
        socks: list[socket.socket] = []
        while True:
            for sock in select.select([self._listener, *socks], [], [])[0]:
                if sock is self._listener:
                    try:
                        socks.append(sock.accept()[0])
                    except OSError:
                        return
                    continue
                with contextlib.suppress(OSError, local_socket.LocalSocketError):
                    if local_socket.receive(sock) is not None:
                        continue
                socks.remove(sock)

    def tell(self, kind: str, **values: Any) -> None:
        """One message to the vault."""
        local_socket.send(self._control, {"kind": kind, **values})

    def hear(self, kind: str, **wanted: Any) -> dict[str, Any]:
        """The next message of this kind with these values; what comes before it is passed over.

        Raises:
            TimeoutError: it does not come.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            if not select.select([self._control], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the vault of {self.name} did not say {kind}")
            received = local_socket.receive(self._control)
            if received is None:
                raise TimeoutError(f"the vault of {self.name} is gone")
            message = received[0]
            if message["kind"] == kind and all(message.get(key) == value for key, value in wanted.items()):
                return message

    def enter(self, generation: int, step: int = 0, holder: BenchNode | None = None) -> None:
        """A generation of one rank begins, from the state of `step` that `holder` has."""
        source: dict[str, Any] = {"slot": 0, "holder": (holder or self).name, "tier": "memory"}
        if holder is not None:
            source |= {"host": "127.0.0.1", "port": holder.port, "tier": "replica"}
        checkpoint = {"step": step, "sources": [source]}
        self.tell("generation", generation=generation, slot=0, ranks=[0], replicate_to=[], checkpoint=checkpoint)

    def trainer_environ(self, generation: int, step: int) -> dict[str, str]:
        """What the one trainer of this node finds in its environment."""
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        sockets = {"LMR_AGENT_SOCKET": self.agent_socket, "LMR_VAULT_SOCKET": self.vault_socket}
        place = {"LM_RESILIENCY_GENERATION": str(generation), "LM_RESILIENCY_RESUME_STEP": str(step)}
        return {**rank, **sockets, **place, "LMR_WORKER_POLICY": json.dumps(self.policy)}

    def cpu_s(self) -> float:
        """Processor seconds the vault has used."""
        with open(f"/proc/{self._process.pid}/stat") as file:  # noqa: PTH123
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def wait_idle(self) -> None:
        """Until the vault has started up: from then on it computes only what it is asked for."""
        before = -1.0
        while (now := self.cpu_s()) != before:
            before = now
            time.sleep(0.1)

    def taken_bytes(self) -> int:
        """Memory of the vault: its memfds, and what is its process's alone."""
        files = {}  # a mapping has a descriptor of its own
        for link in Path(f"/proc/{self._process.pid}/fd").iterdir():
            if "memfd:lmr-vault" in str(link.readlink()):
                files[link.stat().st_ino] = link.stat().st_blocks * 512
        found = sum(files.values())
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                found += int(line.split()[1]) * 1024
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._control.close()
        self._listener.close()
