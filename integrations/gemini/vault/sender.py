"""Sends copies to one peer's vault, and fetches from one, on threads of their own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from lmr.integrations.gemini.errors import ShardMismatch
from lmr.integrations.gemini.vault import transfer
from lmr.integrations.gemini.vault.copies import Copy
from lmr.integrations.gemini.vault.filling import Filling
from lmr.integrations.gemini.vault.memory import Buffer
from lmr.integrations.gemini.vault.transfer import CopyHeader, Peer
from lmr.integrations.wire import Channel, WireError

_PAUSE_S = 0.2
_GIVES_UP_ON = frozenset({"another run", "stale_generation"})


class Sender:
    """One peer's queue. A transfer that breaks is begun again; one the peer refuses for good is not.

    Args:
        peer: where to.
        run: the run's id.
        secret: the run's secret.
        timeout_s: how long a silent peer is waited for.
        attempts: how often one copy is tried.
        chunk_bytes: how much state is handed to a connection at once.
        done: called on the sender's thread with the copy and, if it failed for good, why.
    """

    def __init__(
        self,
        peer: Peer,
        run: str,
        secret: bytes,
        timeout_s: float,
        attempts: int,
        chunk_bytes: int,
        done: Callable[[Copy, str | None], None],
    ) -> None:
        self.peer = peer
        self._run = run
        self._secret = secret
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._chunk_bytes = chunk_bytes
        self._done = done
        self._queue: deque[Copy] = deque()
        self._change = threading.Condition()
        self._stopped = False
        self._channel: Channel | None = None
        threading.Thread(target=self._work, name=f"sender-{peer.node}", daemon=True).start()

    def send(self, copy: Copy) -> None:
        """Send a measured copy, which the caller holds until `done`."""
        with self._change:
            self._queue.append(copy)
            self._change.notify()

    def stop(self) -> None:
        """The peer is no longer replicated to; what is queued is reported as failed."""
        with self._change:
            self._stopped = True
            self._change.notify()

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._queue and not self._stopped:
                    self._change.wait()
                if not self._queue:
                    break
                copy = self._queue.popleft()
            self._done(copy, self._deliver(copy))
        self._hang_up()

    def _deliver(self, copy: Copy) -> str | None:
        why: str | None = "stopped"
        for attempt in range(self._attempts):
            if self._stopped:
                return "stopped"
            if attempt:
                time.sleep(_PAUSE_S * attempt)
            try:
                why = self._put(copy)
            except (OSError, WireError) as error:
                self._hang_up()
                why = f"{type(error).__name__}: {error}"
                continue
            if why is None or why in _GIVES_UP_ON:
                return why
        return why

    def _put(self, copy: Copy) -> str | None:
        if self._channel is None:
            self._channel = transfer.connect(self.peer, self._secret, self._timeout_s)
        channel = self._channel
        header = CopyHeader.of(self._run, copy)
        channel.send({"kind": "put", **header.to_json()})
        answer = channel.recv()
        if answer.get("kind") == "have":
            return None
        if answer.get("kind") == "go":
            asked = transfer.parse_need(answer.get("need"), header)
            transfer.send_memory(channel, copy.memories(), asked, self._chunk_bytes)
            answer = channel.recv()
        return None if answer.get("kind") == "stored" else str(answer.get("why"))

    def _hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def fetch(
    peer: Peer,
    run: str,
    secret: bytes,
    step: int,
    slot: int,
    timeout_s: float,
    attempts: int,
    make_room: Callable[[CopyHeader], dict[int, Buffer]],
) -> tuple[CopyHeader, dict[int, Buffer]]:
    """Fetch a slot's copy from another vault and verify it.

    Args:
        peer: who holds it.
        run: the run's id.
        secret: the run's secret.
        step: which step.
        slot: which slot.
        timeout_s: how long a silent peer is waited for.
        attempts: how often a broken transfer is begun again.
        make_room: gives the buffers to fill.

    Raises:
        ShardMismatch: the peer has no such copy (`missing`), cannot be reached (`timeout`), or what came is damaged.
    """
    trouble = ""
    filling: Filling | None = None
    try:
        for attempt in range(attempts):
            if attempt:
                time.sleep(_PAUSE_S * attempt)
            try:
                filling = _fetch_once(peer, run, secret, step, slot, timeout_s, make_room, filling)
            except _Broken as broken:
                filling, trouble = broken.filling, broken.trouble
                continue
            if not filling.complete:
                raise ShardMismatch("digest_mismatch", f"{peer.node} gave a damaged step {step} of slot {slot}")
            header, buffers, filling = filling.header, filling.buffers, None
            return header, buffers
        raise ShardMismatch("timeout", f"{peer.node} at {peer.host}:{peer.port}: {trouble}")
    finally:
        if filling is not None:
            for buffer in filling.buffers.values():
                buffer.discard()


class _Broken(Exception):
    """The connection broke; what it brought is kept for the next one."""

    def __init__(self, filling: Filling | None, trouble: str) -> None:
        super().__init__(trouble)
        self.filling = filling
        self.trouble = trouble


def _fetch_once(
    peer: Peer,
    run: str,
    secret: bytes,
    step: int,
    slot: int,
    timeout_s: float,
    make_room: Callable[[CopyHeader], dict[int, Buffer]],
    filling: Filling | None,
) -> Filling:
    try:
        channel = transfer.connect(peer, secret, timeout_s)
        try:
            channel.send({"kind": "get", "run": run, "step": step, "slot": slot})
            answer = channel.recv()
            if answer.get("kind") != "copy":
                raise ShardMismatch(str(answer.get("why")), f"{peer.node} does not give step {step} of slot {slot}")
            header = CopyHeader.parse(answer)
            if (header.step, header.slot) != (step, slot):
                raise ShardMismatch("missing", f"{peer.node} gave step {header.step} of slot {header.slot}")
            if filling is None or filling.header.digest != header.digest:
                filling = Filling(header, make_room(header))
            need = filling.need()
            channel.send({"kind": "need", "need": need})
            filling.receive(channel, need, filling.claim())
            return filling
        finally:
            channel.close()
    except (OSError, WireError) as error:
        raise _Broken(filling, f"{type(error).__name__}: {error}") from error
