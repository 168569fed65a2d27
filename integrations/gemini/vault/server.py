"""Serves other vaults: takes replicas in and gives copies out, one thread a connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from lmr.integrations.gemini.errors import ShardMismatch
from lmr.integrations.gemini.vault import transfer
from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.gemini.vault.memory import Buffer
from lmr.integrations.gemini.vault.transfer import CopyHeader
from lmr.integrations.wire import Channel, WireError

_log = structlog.get_logger(__name__)
_MAX_CONNECTIONS = 64


class Shelves(Protocol):
    """What the server asks of the vault; each call runs on the vault's loop."""

    def make_room(self, header: CopyHeader) -> dict[int, Buffer] | str:
        """Buffers for a copy that is about to arrive; or `have`; or why it is refused."""

    def shelve(self, header: CopyHeader, buffers: dict[int, Buffer]) -> str | None:
        """Take a verified copy in; why not, if it came too late."""

    def abandon(self, buffers: dict[int, Buffer]) -> None:
        """Give buffers of a broken transfer back."""

    def take_down(self, step: int, slot: int) -> tuple[CopyHeader, Copy] | str:
        """A measured copy, held until `let_go`; or why there is none."""

    def let_go(self, copy: Copy) -> None:
        """The copy has been sent."""


class Server:
    """Listens for other vaults.

    Args:
        host: address to listen on.
        run: the run whose copies are served.
        secret: the run's secret.
        ask: runs a callable on the vault's loop and returns its result.
        shelves: the vault's copies.
        timeout_s: how long a silent peer is waited for.
        chunk_bytes: size of a frame of state.
    """

    def __init__(
        self,
        host: str,
        run: str,
        secret: bytes,
        ask: Callable[[Callable[[], Any]], Any],
        shelves: Shelves,
        timeout_s: float,
        chunk_bytes: int,
    ) -> None:
        self._run = run
        self.secret = secret
        self._ask = ask
        self._shelves = shelves
        self._timeout_s = timeout_s
        self._chunk_bytes = chunk_bytes
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._listener = socket.create_server((host, 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="server", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._listener.accept()
            except OSError as error:  # out of descriptors: the peer tries again
                _log.warning("vault.no_connection", error=str(error))
                time.sleep(0.1)
                continue
            if not self._slots.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock, address), name="peer", daemon=True).start()

    def _serve(self, sock: socket.socket, address: Any) -> None:
        try:
            sock.settimeout(self._timeout_s)
            channel = Channel(sock, self.secret, "server")
            while True:
                request = channel.recv()
                if request.get("run") != self._run:
                    channel.send({"kind": "refused", "why": "another run"})
                elif request.get("kind") == "put":
                    self._take_in(channel, request)
                elif request.get("kind") == "get":
                    self._give_out(channel, int(request["step"]), int(request["slot"]))
                else:
                    channel.send({"kind": "refused", "why": "unknown request"})
        except TimeoutError:
            pass  # an idle peer; it connects again when it has something
        except (OSError, WireError, ShardMismatch, KeyError, ValueError) as error:
            if not isinstance(error, ConnectionError):
                _log.warning("vault.peer_failed", address=str(address), error=str(error))
        finally:
            sock.close()
            self._slots.release()

    def _take_in(self, channel: Channel, request: dict[str, Any]) -> None:
        header = CopyHeader.parse(request)
        room = self._ask(lambda: self._shelves.make_room(header))
        if isinstance(room, str):
            channel.send({"kind": "have"} if room == "have" else {"kind": "refused", "why": room})
            return
        buffers: dict[int, Buffer] = room
        try:
            channel.send({"kind": "go"})
            memories = {rank: buffers[rank].memory[: meta.total_bytes] for rank, (meta, _, _) in header.shards.items()}
            transfer.receive_memory(channel, [memories[rank] for rank in sorted(memories)])
            transfer.verify(header, memories)
            memories.clear()
        except ShardMismatch as error:
            self._ask(lambda: self._shelves.abandon(buffers))
            channel.send({"kind": "refused", "why": error.why})
            return
        except BaseException:
            self._ask(lambda: self._shelves.abandon(buffers))
            raise
        why = self._ask(lambda: self._shelves.shelve(header, buffers))
        channel.send({"kind": "stored"} if why is None else {"kind": "refused", "why": why})

    def _give_out(self, channel: Channel, step: int, slot: int) -> None:
        found = self._ask(lambda: self._shelves.take_down(step, slot))
        if isinstance(found, str):
            channel.send({"kind": "refused", "why": found})
            return
        header, copy = found
        try:
            channel.send({"kind": "copy", **header.to_json()})
            memories = [
                copy.shards[rank].buffer.memory[: copy.shards[rank].meta.total_bytes] for rank in sorted(header.shards)
            ]
            transfer.send_memory(channel, memories, self._chunk_bytes)
        finally:
            self._ask(lambda: self._shelves.let_go(copy))
