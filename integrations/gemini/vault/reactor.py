"""The vault's one thread: sockets, timers, and work handed in by other threads. All state is touched from here only."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class Reactor:
    """Runs until `stop`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = itertools.count()
        self._stopped = False
        self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_r, selectors.EVENT_READ, self._drain)

    def watch(self, sock: socket.socket, readable: Callable[[], None]) -> None:
        """Call `readable` whenever there is something to read."""
        self._selector.register(sock, selectors.EVENT_READ, readable)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching; unknown sockets are ignored."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call `action` once, later."""
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._ids), action))

    def post(self, action: Callable[[], None]) -> None:
        """Have `action` run on the reactor's thread; callable from any thread."""
        self._posted.append(action)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b"x")

    def ask(self, action: Callable[[], T]) -> T:
        """Run `action` on the reactor's thread and wait for its result; never call this on that thread."""
        assert threading.current_thread() is not threading.main_thread()
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(action())
            except BaseException as error:  # noqa: BLE001  handed to the thread that asked
                answer.set_exception(error)

        self.post(run)
        return answer.result()

    def stop(self) -> None:
        """Leave `run` after the current round."""
        self._stopped = True

    def run(self) -> None:
        """Serve until stopped."""
        while not self._stopped:
            timeout = None
            if self._timers:
                timeout = max(0.0, self._timers[0][0] - time.monotonic())
            ready: list[Any] = self._selector.select(timeout)
            for key, _ in ready:
                _survive(key.data)
            while self._posted:
                _survive(self._posted.popleft())
            while self._timers and self._timers[0][0] <= time.monotonic():
                _survive(heapq.heappop(self._timers)[2])

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_r, 4096):
                pass


def _survive(action: Callable[[], None]) -> None:
    """One message that cannot be handled must not cost every rank's state."""
    try:
        action()
    except Exception:  # noqa: BLE001  the process's edge: recorded, and the state lives on
        _log.exception("vault.fault")
