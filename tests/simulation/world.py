"""Virtual time, and processes that run in it: one thread, one order of events for each seed.

A process has an asyncio loop of its own. Its callbacks wait while it is paused (SIGSTOP) and are dropped once it is
dead (SIGKILL). Its clocks are its own: the wall clock is off, the monotonic one runs a little fast or slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
from asyncio import events as asyncio_events
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.network import Network

EPOCH_MS = 1_767_225_600_000
"""The world's wall clock at its first moment."""
LOOK_S = 0.05
"""How often it is asked whether a history is over."""


class World:
    """What everything simulated shares: the time, the source of chance, and what happened so far."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now = 0.0
        self.history: list[str] = []
        self.failed: list[tuple[str, asyncio.Task[Any]]] = []
        self.complaints: list[str] = []
        self.graves: list[asyncio.Task[Any]] = []
        """Tasks of dead processes: kept, so that nothing of them runs when they are collected."""
        self.running: asyncio.AbstractEventLoop | None = None
        """The loop whose process had the processor last."""
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Process | None, Callable[[], object]]] = []

    def note(self, who: str, what: str) -> None:
        """Write one line of history."""
        self.history.append(f"{self.now:9.4f} {who:<8} {what}")

    def at(self, when: float, call: Callable[[], object], process: Process | None = None) -> None:
        """Run `call` at that time, on the process if one is given."""
        heapq.heappush(self._queue, (max(when, self.now), next(self._order), process, call))

    def after(self, delay_s: float, call: Callable[[], object], process: Process | None = None) -> None:
        """Run `call` that much later."""
        self.at(self.now + delay_s, call, process)

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Let time pass until `done` or `until`, whatever comes first."""
        queue, checked, pop = self._queue, 0.0, heapq.heappop
        try:
            while queue:
                when, _, process, call = pop(queue)
                if when > until:
                    break
                self.now = when
                if process is None:
                    self.enter(None)
                    call()
                else:
                    process.take(call)
                if when > checked:
                    if done():
                        break
                    checked = when + LOOK_S
        finally:
            self.enter(None)

    def enter(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Give the processor to the process of a loop."""
        if loop is not self.running:
            self.running = loop
            asyncio_events._set_running_loop(loop)

    def bury(self) -> None:
        """End what never ends by itself: nothing of it may run later, when memory is collected."""
        while self.graves:  # a coroutine that ends may start others
            with contextlib.suppress(RuntimeError):
                self.graves.pop().get_coro().close()  # type: ignore[union-attr]

    def uncaught(self) -> list[str]:
        """Exceptions nobody looked at."""
        found = [
            f"{name}: {task.get_coro()}: {task.exception()!r}"
            for name, task in self.failed
            if task._log_traceback  # type: ignore[attr-defined]
        ]
        return [*self.complaints, *found]

    def wall_ms(self) -> int:
        """True time, UTC Unix milliseconds; the database server's clock."""
        return EPOCH_MS + int(self.now * 1000)


class Process:
    """One simulated operating system process.

    Args:
        world: where it lives.
        network: what its sockets are plugged into.
        name: for the history.
        host: its machine's address.
        skew_ms: its wall clock is that much ahead.
        rate: seconds of its monotonic clock to a true second.
    """

    def __init__(self, world: World, network: Network, name: str, host: str, skew_ms: int, rate: float) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.host = host
        self.alive = True
        self._skew_ms = skew_ms
        self._rate = rate
        self.paused = False
        self.still = False
        """The whole machine is frozen, its workers too."""
        self.woken = -1e9
        """When the machine was last resumed."""
        self._waiting: list[Callable[[], object]] = []
        self.loop = VirtualLoop(self)

    def monotonic(self) -> float:
        """The process's monotonic clock, seconds. It goes on while the process is paused."""
        return 1000 + self.world.now * self._rate

    def wall_ms(self) -> int:
        """The process's wall clock."""
        return self.world.wall_ms() + self._skew_ms

    def true_time(self, monotonic: float) -> float:
        """The world's time at a moment of the monotonic clock."""
        return (monotonic - 1000) / self._rate

    def take(self, call: Callable[[], object]) -> None:
        """Execute a callback as this process, now or when it goes on."""
        if not self.alive:
            return
        if self.paused:
            self._waiting.append(call)
            return
        self.world.enter(self.loop)
        call()

    def run(self, call: Callable[[], object]) -> None:
        """As `take`, in the midst of what another process does."""
        before = self.world.running
        self.take(call)
        self.world.enter(before)

    def pause(self, *, machine: bool) -> None:
        """SIGSTOP, of this process alone or of everything on its machine."""
        self.paused = True
        self.still = machine

    def resume(self) -> None:
        """SIGCONT: what has come meanwhile is there at once."""
        if self.still:
            self.woken = self.world.now
        self.paused = self.still = False
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            self.world.at(self.world.now, call, self)

    def kill(self, *, power: bool = False) -> None:
        """SIGKILL; with `power`, the whole machine is gone and its peers hear nothing of it."""
        self.alive = False
        self._waiting.clear()
        self.network.died(self, power=power)
        self.loop.bury()


class VirtualLoop(asyncio.AbstractEventLoop):
    """As much of an asyncio loop as the product uses, on the world's time."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._from_threads = 0.0

    def time(self) -> float:
        return self._process.monotonic()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._process.alive

    def is_closed(self) -> bool:
        return not self._process.alive

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._process.world.at(self._process.world.now, _runner(handle), self._process)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        world = self._process.world
        self._from_threads = max(self._from_threads, world.now + world.chance.uniform(0, 0.001))
        world.at(self._from_threads, _runner(handle), self._process)
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._process.world.at(self._process.true_time(when), _runner(handle), self._process)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None, **_: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name)
        if self._process.alive:
            self._tasks[task] = None
            task.add_done_callback(self._ended)
        else:
            self._lay_down(task)
        return task

    def _lay_down(self, task: asyncio.Task[Any]) -> None:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._process.world.graves.append(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task._log_traceback:  # type: ignore[attr-defined]
            self._process.world.failed.append((self._process.name, task))

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """A thread: the function runs a moment later, its result comes back another moment later."""
        world, future = self._process.world, self.create_future()

        def work() -> None:
            try:
                result, error = func(*args), None
            except Exception as raised:
                result, error = None, raised
            world.after(world.chance.uniform(0, 0.002), lambda: answer(result, error), self._process)

        def answer(result: Any, error: Exception | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(result)

        world.after(world.chance.uniform(0, 0.003), work, self._process)
        return future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self._process.network.connect(self._process, protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, *_: Any, sock: Any = None, **__: Any) -> Any:
        port = sock.getsockname()[1] if sock is not None else self._process.network.free_port()
        return self._process.network.listen(self._process, protocol_factory, port)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._process.alive:
            self._process.world.complaints.append(f"{self._process.name}: {context}")

    def bury(self) -> None:
        """The process is dead: nothing of its tasks ever runs again, `finally` included."""
        tasks, self._tasks = list(self._tasks), {}
        for task in tasks:
            self._lay_down(task)


def _runner(handle: asyncio.Handle) -> Callable[[], object]:
    def call() -> None:
        if not handle.cancelled():
            handle._run()

    return call


def spawn(process: Process, work: Coroutine[Any, Any, Any]) -> None:
    """Start a coroutine on a process."""
    process.world.at(process.world.now, lambda: process.loop.create_task(work), process)
