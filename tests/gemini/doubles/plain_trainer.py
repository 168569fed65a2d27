"""A trainer without torch: it writes real shards of bytes into a real vault's memory."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path

from lmr.integrations.gemini.client import Restored, VaultClient
from lmr.integrations.gemini.shard import Layout, Wanted


def content(rank: int, step: int, nbytes: int, shared: int, frozen: int = 0) -> bytes:
    """Bytes that depend on rank and step; the first `shared` only on the step, then `frozen` only on the rank."""
    own = random.Random(f"{rank}").randbytes(frozen)
    own += random.Random(f"{rank}/{step}").randbytes(nbytes - shared - frozen)
    return random.Random(f"{step}").randbytes(shared) + own


class PlainTrainer:
    """One rank."""

    def __init__(
        self, vault_socket: str, rank: int, generation: int = 0, nbytes: int = 64 * 1024, frozen: int = 0
    ) -> None:
        self.rank = rank
        self.nbytes = nbytes
        self.frozen = frozen
        self.shared = nbytes // 2
        self.layout = Layout(
            [
                Wanted("shared", "uint8", (self.shared,), self.shared, "shared"),
                Wanted("own", "uint8", (nbytes - self.shared,), nbytes - self.shared, "own"),
            ]
        )
        self.client = VaultClient(vault_socket, rank, generation)
        self.asked = False

    def capture(self, step: int, peers: list[int] | None = None, patience_s: float = 5.0) -> bool:
        """Write one step; False when the vault has no buffer to give."""
        if not self.asked:
            self.client.request_arena(self.nbytes + 4096)
            self.asked = True
        granted = self.client.grant(patience_s)
        if granted is None:
            return False
        tree = b'{"step":%d}' % step
        meta = self.layout.meta(self.rank, len(tree))
        body = content(self.rank, step, self.nbytes, self.shared, self.frozen) + self.layout.entries_json + tree
        granted.memory[: len(body)] = body
        self.client.captured(step, meta, peers)
        return True

    def capture_soon(self, step: int, patience_s: float = 60.0) -> None:
        """Write one step as soon as there is a buffer: while all others are needed, one is measured."""
        deadline = time.monotonic() + patience_s
        while not self.capture(step, patience_s=0.01):
            assert time.monotonic() < deadline, f"no buffer for step {step}"
            time.sleep(0.001)

    def read(self, step: int, wait_s: float = 10.0) -> tuple[Restored, bytes]:
        """Wait for the restore; the shard's tensor bytes."""
        restored = self.client.restore(step, wait_s)
        return restored, bytes(restored.memory[: restored.meta.tensor_bytes])

    def close(self) -> None:
        self.client.close()


def vault_memory(pid: int) -> list[str]:
    """Paths of a vault's memfds, through which a test can damage what it holds; one for each."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            name = str(Path(path).readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        if "memfd:lmr-vault" in name:
            found[name] = path
    return list(found.values())


def taken_bytes(pid: int) -> int:
    """Memory of a vault's memfds, as the kernel counts it."""
    found = 0
    for path in vault_memory(pid):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += Path(path).stat().st_blocks * 512
    return found
