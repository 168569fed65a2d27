"""What an agent takes for a sign that its lease is counted."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from lmr.integrations.torchrun.clock import SYSTEM
from lmr.integrations.torchrun.identity import Identity
from lmr.integrations.torchrun.link import Link
from lmr.integrations.wire import AsyncChannel

SECRET = b"s" * 32
BEAT_S = 0.02
PINS = 10


async def heard_at_each_pin(*, decider_answers: bool) -> list[float]:
    """From when on the lease was sure, as each of the decider's pins came; each follows a heartbeat."""
    heard: list[float] = []
    done = asyncio.Event()

    async def decide(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = await AsyncChannel.open(reader, writer, SECRET, "server")
        await channel.recv()
        channel.send({"kind": "welcome", "run": "run", "outage": None})
        for number in range(PINS):
            beat = await channel.recv()
            if decider_answers:
                channel.send({**beat, "outage": None, "alone": False})
            channel.send({"kind": "pin", "generation": 0, "step": number})
        await done.wait()
        writer.close()

    def said(message: dict[str, Any]) -> None:
        if message["kind"] == "pin":
            heard.append(link.heard)
        if len(heard) == PINS:
            done.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = await asyncio.start_server(decide, sock=listener)
        link = Link(Identity("node-1", "life", None, "same"), SECRET, {}, said, BEAT_S, None, SYSTEM)

        async def locate() -> tuple[str, int]:
            host, port = listener.getsockname()
            return host, port

        running = asyncio.create_task(link.run(locate))
        await asyncio.wait_for(done.wait(), 60)
        link.abandon()
        running.cancel()
        server.close()
    return heard


def test_a_lease_is_counted_from_what_the_decider_answers() -> None:
    heard = asyncio.run(heard_at_each_pin(decider_answers=True))
    assert heard == sorted(set(heard))


def test_what_a_decider_says_of_its_own_accord_proves_nothing() -> None:
    """A node that can hear and cannot be heard is lost when its lease ends, whatever it was told meanwhile."""
    heard = asyncio.run(heard_at_each_pin(decider_answers=False))
    assert len(set(heard)) == 1
