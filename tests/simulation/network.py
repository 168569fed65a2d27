"""Machines' connections: ordered within one, each byte late by chance; cut, held back and reset by whoever asks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from simulation.world import Process, World

LOOK_AGAIN_S = 0.2
"""How often a connection attempt is sent again that nobody answered."""


class Network:
    """Every machine can reach every other, unless a pair is cut.

    Args:
        world: time and chance.
        slow_s: a packet is late by up to so much, now and then.
    """

    def __init__(self, world: World, slow_s: float) -> None:
        self.world = world
        self.slow_s = slow_s
        self._cut: set[tuple[str, str]] = set()
        self._held: list[tuple[str, str, Callable[[], None]]] = []
        self._servers: dict[tuple[str, int], Server] = {}
        self._dark: set[str] = set()
        self._ends: dict[End, None] = {}
        self._ports = itertools.count(40_000)

    def free_port(self) -> int:
        """A port nobody has."""
        return next(self._ports)

    def latency_s(self) -> float:
        """How long one packet takes."""
        chance = self.world.chance
        return chance.uniform(0.0001, 0.001) if chance.random() > 0.02 else chance.uniform(0.001, self.slow_s)

    # -- faults --------------------------------------------------------------------------------------------------------

    def reaches(self, source: str, target: str) -> bool:
        """Whether packets from one machine arrive at the other."""
        return (source, target) not in self._cut and target not in self._dark and source not in self._dark

    def cut(self, source: str, target: str) -> None:
        """Packets in that direction are held back from here on."""
        self._cut.add((source, target))

    def heal(self) -> None:
        """Every pair can talk again; what was held back is sent again."""
        self._cut.clear()
        held, self._held = self._held, []
        for source, target, deliver in held:
            self.carry(source, target, deliver)

    def reset_one(self) -> None:
        """Some connection breaks."""
        ends = [end for end in self._ends if not end.is_closing()]
        if ends:
            self._reset(self.world.chance.choice(ends))

    def reset_all(self, host: str) -> None:
        """Every connection of a machine breaks."""
        for end in [end for end in self._ends if end.process.host == host and not end.is_closing()]:
            self._reset(end)

    def _reset(self, end: End) -> None:
        self.world.note("network", f"reset {end.process.host} - {end.peer.process.host}")
        for side in (end, end.peer):
            self.world.after(self.latency_s(), side.broken, side.process)

    def power_on(self, host: str) -> None:
        """The machine is there again, with nothing running."""
        self._dark.discard(host)

    def died(self, process: Process, *, power: bool) -> None:
        """The process's sockets are gone: its peers are told by its kernel, or hear nothing if that is gone too."""
        if power:
            self._dark.add(process.host)
        for key in [key for key, server in self._servers.items() if server.process is process]:
            del self._servers[key]
        for end in [end for end in self._ends if end.process is process]:
            del self._ends[end]
            if not power and not end.is_closing():
                peer = end.peer
                self.carry(process.host, peer.process.host, lambda peer=peer: peer.later(peer.broken))

    # -- connections ---------------------------------------------------------------------------------------------------

    def carry(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Bring something to the other machine, now or when it can be reached."""
        if source in self._dark or target in self._dark:
            return
        if not self.reaches(source, target):
            self._held.append((source, target, deliver))
        else:
            deliver()

    def listen(self, process: Process, factory: Callable[[], Any], port: int) -> Server:
        """Accept connections."""
        server = Server(self, process, factory, port)
        self._servers[process.host, port] = server
        return server

    def unlisten(self, server: Server) -> None:
        """Accept no more."""
        self._servers.pop((server.process.host, server.port), None)

    async def connect(self, process: Process, factory: Callable[[], Any], host: str, port: int) -> Any:
        """Connect as TCP does: refused by a machine without a listener, silent without a machine."""
        host = process.host if host == "127.0.0.1" else host
        await asyncio.sleep(self.latency_s())
        while not (self.reaches(process.host, host) and self.reaches(host, process.host)):
            await asyncio.sleep(LOOK_AGAIN_S)
        server = self._servers.get((host, port))
        if server is None:
            raise ConnectionRefusedError(f"{host}:{port}")
        client, served = End(self, process, factory()), End(self, server.process, server.factory())
        client.peer, served.peer = served, client
        self._ends[client] = self._ends[served] = None
        client.protocol.connection_made(client)
        self.world.after(self.latency_s(), served.made, server.process)
        return client, client.protocol

    def forget(self, end: End) -> None:
        """The socket is closed."""
        self._ends.pop(end, None)


class Server:
    """A listening socket."""

    def __init__(self, network: Network, process: Process, factory: Callable[[], Any], port: int) -> None:
        self.network = network
        self.process = process
        self.factory = factory
        self.port = port

    @property
    def sockets(self) -> list[Listener]:
        return [Listener(self.port)]

    def close(self) -> None:
        self.network.unlisten(self)


class Listener:
    """What stands for a listening socket before it is served."""

    def __init__(self, port: int) -> None:
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return "", self._port

    def close(self) -> None:
        return


class End(asyncio.Transport):
    """One end of a connection."""

    peer: End

    def __init__(self, network: Network, process: Process, protocol: Any) -> None:
        super().__init__()
        self.process = process
        self.protocol = protocol
        self._network = network
        self._closing = False
        self._lost = False
        self._last = 0.0

    def later(self, call: Callable[[], object]) -> None:
        """Something reaches this end after everything that was sent to it before."""
        world = self._network.world
        self._last = max(self._last, world.now + self._network.latency_s())
        world.at(self._last, call, self.process)

    def made(self) -> None:
        """The accepting side has its connection."""
        if not self._lost:
            self.protocol.connection_made(self)

    def _send(self, arrive: Callable[[], object]) -> None:
        peer = self.peer
        self._network.carry(self.process.host, peer.process.host, lambda: peer.later(arrive))

    def write(self, data: Any) -> None:
        if not self._closing:
            chunk = bytes(data)
            self._send(lambda: self.peer.take(chunk))

    def take(self, data: bytes) -> None:
        """Bytes arrive; a closed socket answers with a reset."""
        if self._closing:
            self._send(self.peer.broken)
        else:
            self.protocol.data_received(data)

    def ended(self) -> None:
        """The other end closed."""
        if not self._closing:
            self.protocol.eof_received()

    def broken(self) -> None:
        """The connection was reset."""
        self._lose(ConnectionResetError("connection reset by peer"))

    def close(self) -> None:
        if self._closing or not self.process.alive:
            return
        self._closing = True
        self._send(self.peer.ended)
        self._network.world.at(self._network.world.now, lambda: self._lose(None), self.process)

    def abort(self) -> None:
        self.close()

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._network.forget(self)
        self.protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.peer.process.host if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return 0
