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
from lmr.integrations.gemini.vault.disk import DiskCopy
from lmr.integrations.gemini.vault.filling import Filling
from lmr.integrations.gemini.vault.transfer import CopyHeader
from lmr.integrations.wire import Channel, WireError

_log = structlog.get_logger(__name__)
_MAX_CONNECTIONS = 64
_PATIENCE_S = 2.0
"""How long a copy waits for this node's own capture of the step, with which it may have most in common."""
_LOOK_AGAIN_S = 0.01


class Shelves(Protocol):
    """What the server asks of the vault; each call runs on the vault's loop."""

    def make_room(self, header: CopyHeader) -> Filling | str:
        """Room for a copy that is about to arrive, and what a broken try brought; or `have`; or why it is refused."""

    def is_awaited(self, step: int) -> bool:
        """Whether this node is about to capture the same step itself."""

    def settle_in(self, filling: Filling) -> list[Copy] | str:
        """Take memory for what is to arrive; copies with chunks in common, held until `let_go`, or why not."""

    def shelve(self, filling: Filling) -> str | None:
        """Take a complete copy in; why not, if it came too late."""

    def take_down(self, step: int, slot: int) -> tuple[CopyHeader, Copy] | str:
        """A measured copy, held until `let_go`; or why there is none."""

    def on_disk(self, step: int, slot: int) -> DiskCopy | None:
        """The copy on this node's disk."""

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
        chunk_bytes: how much state is handed to a connection at once.
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
        filling: Filling = room
        owner = filling.claim()
        until = time.monotonic() + _PATIENCE_S
        while self._ask(lambda: self._shelves.is_awaited(header.step)) and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_S)
        alike = self._ask(lambda: self._shelves.settle_in(filling))
        if isinstance(alike, str):
            channel.send({"kind": "refused", "why": alike})
            return
        for other in alike:
            filling.take_equal(other)
            self._ask(lambda copy=other: self._shelves.let_go(copy))  # type: ignore[misc]
        need = filling.need()
        channel.send({"kind": "go", "need": need})
        filling.receive(channel, need, owner)
        if not filling.complete:
            channel.send({"kind": "refused", "why": "digest_mismatch"})
            return
        why = self._ask(lambda: self._shelves.shelve(filling))
        channel.send({"kind": "stored"} if why is None else {"kind": "refused", "why": why})

    def _give_out(self, channel: Channel, step: int, slot: int) -> None:
        found = self._ask(lambda: self._shelves.take_down(step, slot))
        stored = self._ask(lambda: self._shelves.on_disk(step, slot)) if isinstance(found, str) else None
        if stored is not None:
            self._give_from_disk(channel, stored)
            return
        if isinstance(found, str):
            channel.send({"kind": "refused", "why": found})
            return
        header, copy = found
        try:
            channel.send({"kind": "copy", **header.to_json()})
            asked = transfer.parse_need(channel.recv().get("need"), header)
            transfer.send_memory(channel, copy.memories(), asked, self._chunk_bytes)
        finally:
            self._ask(lambda: self._shelves.let_go(copy))

    def _give_from_disk(self, channel: Channel, stored: DiskCopy) -> None:
        """The bytes go as they are; who receives them checks them."""
        try:
            file = stored.open()
        except ShardMismatch as error:
            channel.send({"kind": "refused", "why": error.why})
            return
        with file:
            channel.send({"kind": "copy", **stored.header.to_json()})
            asked = transfer.parse_need(channel.recv().get("need"), stored.header)
            shard_at = 0
            for rank, (meta, _, _) in sorted(stored.header.shards.items()):
                for start, end in asked[rank]:
                    file.seek(shard_at + start)
                    left = end - start
                    while left:
                        chunk = file.read(min(left, self._chunk_bytes))
                        if not chunk:
                            raise ShardMismatch("digest_mismatch", f"{stored.data} ends early")
                        channel.send_unsealed(chunk)
                        left -= len(chunk)
                shard_at += meta.total_bytes
