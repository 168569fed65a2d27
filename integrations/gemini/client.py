"""The trainer's side of the vault: grants come in, captures go out, and a restore is waited for.

trainer                                     vault
hello {role, rank, generation}      ->
arena {bytes}                       ->      buffers of at least this size, please
                                    <-      grant {buffer, bytes} + memfd (the first time) | grant {buffer: null, why}
captured {buffer, step, meta, peers} ->     the granted buffer holds a shard
                                    <-      grant ...
check {step}                        ->      the script saves this step: check its capture, made or to come
restore {step}                      ->
                                    <-      shard {step, meta, bytes, tier, holder, slot} + memfd | restore_failed {why}
                                            | durable {step, slot, tier, holder}: read the script's own checkpoint
restored                            ->      the shard's memory is no longer read
"""

from __future__ import annotations

import mmap
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lmr.integrations.gemini.errors import GenerationOver, ShardMismatch, StaleGeneration, VaultUnavailable
from lmr.integrations.gemini.shard import ShardMeta
from lmr.integrations.torchrun import local_socket

CONNECT_S = 5.0
"""How long a vault that listens may take to answer the call; one that does not listen refuses it at once."""

ReadDurable = Callable[[str], tuple[ShardMeta, mmap.mmap]]


@dataclass
class Granted:
    """Memory this rank may write its next capture to."""

    number: int
    memory: mmap.mmap


@dataclass
class Restored:
    """A verified shard, readable until `VaultClient.done_reading`."""

    meta: ShardMeta
    memory: mmap.mmap
    step: int
    slot: int
    holder: str
    tier: str


class VaultClient:
    """One trainer's connection to its node's vault.

    Args:
        socket_name: abstract name the vault listens on.
        rank: global rank.
        generation: of this trainer.
        connect_s: how long a connection may take to come about; 0 never waits.

    Raises:
        VaultUnavailable: nobody listens there.
    """

    def __init__(self, socket_name: str, rank: int, generation: int, connect_s: float = CONNECT_S) -> None:
        try:
            self._sock = local_socket.connect(socket_name, connect_s)
            local_socket.send(
                self._sock,
                {"kind": "hello", "role": "trainer", "rank": rank, "generation": generation, "pid": os.getpid()},
                wait=connect_s > 0,
            )
        except (OSError, local_socket.LocalSocketError) as error:
            raise VaultUnavailable(f"the vault cannot be reached: {error}") from None
        self._mapped: dict[int, mmap.mmap] = {}
        self._granted: Granted | None = None
        self._awaiting = False
        self._reply: tuple[dict[str, Any], list[int]] | None = None

    def request_arena(self, needed_bytes: int) -> None:
        """Ask for buffers of at least this size; what was granted before is void."""
        self._granted = None
        self._awaiting = True
        self._send({"kind": "arena", "bytes": needed_bytes})

    def grant(self, patience_s: float) -> Granted | None:
        """The buffer to write to, or None when the vault has none free.

        Args:
            patience_s: how long an answer the vault owes is waited for.

        Raises:
            StaleGeneration: the vault does not take captures of this trainer's generation, or not yet.
            GenerationOver: it never will again.
            VaultUnavailable: the vault is gone.
        """
        deadline = time.monotonic() + patience_s
        while self._readable(0.0):
            self._hear()
        while self._granted is None and self._awaiting:
            if not self._readable(max(0.0, deadline - time.monotonic())):
                break
            self._hear()
        return self._granted

    def captured(self, step: int, meta: ShardMeta, peers: list[int] | None) -> None:
        """Hand the granted buffer over; it must not be written to any more."""
        assert self._granted is not None
        number, self._granted = self._granted.number, None
        self._awaiting = True
        self._send({"kind": "captured", "buffer": number, "step": step, "meta": meta.to_json(), "peers": peers})

    def check(self, step: int) -> None:
        """The script saves this step itself: its capture is to be checked, whether it was handed over or is to come.

        Raises:
            VaultUnavailable: the vault is gone.
        """
        self._send({"kind": "check", "step": step})

    def restore(self, step: int, wait_s: float, read_durable: ReadDurable | None = None) -> Restored:
        """Wait until all slots are ready and this rank's shard is here.

        Args:
            step: to restore.
            wait_s: how long the vault's word is waited for.
            read_durable: puts the shard together from a checkpoint of the script, when the plan names one.

        Raises:
            ShardMismatch: it will not come, and why.
            VaultUnavailable: the vault is gone.
        """
        self._send({"kind": "restore", "step": step})
        deadline = time.monotonic() + wait_s
        while self._reply is None:
            if not self._readable(max(0.0, deadline - time.monotonic())):
                raise ShardMismatch("timeout", f"step {step} was not handed out within {wait_s} s")
            self._hear()
        (message, fds), self._reply = self._reply, None
        if message["kind"] == "durable" and read_durable is not None:
            meta, memory = read_durable(str(message["holder"]))
            return Restored(
                meta, memory, int(message["step"]), int(message["slot"]), str(message["holder"]), str(message["tier"])
            )
        if message["kind"] != "shard" or not fds:
            raise ShardMismatch(str(message.get("why", "missing")), f"the vault has no shard of step {step}")
        # Private: torch wants writable memory, and nobody may write to the vault's.
        memory = mmap.mmap(fds[0], int(message["bytes"]), flags=mmap.MAP_PRIVATE)
        os.close(fds[0])
        return Restored(
            ShardMeta.parse(message["meta"]),
            memory,
            int(message["step"]),
            int(message["slot"]),
            str(message["holder"]),
            str(message["tier"]),
        )

    def done_reading(self) -> None:
        """The shard `restore` returned is no longer needed."""
        self._send({"kind": "restored"})

    def close(self) -> None:
        """Leave; what was granted goes back to the vault."""
        self._sock.close()

    def _readable(self, wait_s: float) -> bool:
        return bool(select.select([self._sock], [], [], wait_s)[0])

    def _send(self, message: dict[str, Any]) -> None:
        try:
            local_socket.send(self._sock, message, wait=False)
        except OSError as error:
            while self._readable(0.0):  # its last word, or the end
                self._hear()
            raise VaultUnavailable(f"the vault does not listen: {error}") from None

    def _hear(self) -> None:
        try:
            received = local_socket.receive(self._sock)
        except (OSError, local_socket.LocalSocketError) as error:
            raise VaultUnavailable(f"the vault cannot be heard: {error}") from None
        if received is None:
            raise VaultUnavailable("the vault is gone")
        message, fds = received
        if message.get("kind") == "grant":
            self._take_grant(message, fds)
        elif message.get("kind") == "over":
            raise GenerationOver(f"generation {message['generation']} begins")
        else:
            self._reply = received

    def _take_grant(self, message: dict[str, Any], fds: list[int]) -> None:
        self._awaiting = False
        number = message.get("buffer")
        if number is None:
            if message.get("why") == "stale_generation":
                raise StaleGeneration("the vault takes no captures of this generation yet")
            return
        if fds:
            self._mapped[number] = mmap.mmap(fds[0], int(message["bytes"]))
            os.close(fds[0])
        self._granted = Granted(number, self._mapped[number])
