"""Fencing by asking peers: am I cut off, or is nobody deciding?

A node that cannot reach the decider asks the other nodes of its generation. When a majority, itself included, cannot
either, nobody can commit a plan that would replace it, and it trains on, for `ALONE_S` at most. Otherwise it stops its
workers before its lease can be taken over.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from lmr.integrations.wire import AsyncChannel, WireError

ALONE_S = 30.0
"""How long a majority trains on that no decider reaches. A frozen decider has woken up by then, or is lost."""


async def serve_peers(
    secret: bytes, silent_s: Callable[[], float], listener: socket.socket
) -> tuple[asyncio.Server, int]:
    """Answer the peers' question. Returns server and port.

    Args:
        secret: seals the frames.
        silent_s: seconds since this node last heard the decider.
        listener: a port of its own, the same for every kind of address; owned from here on.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            channel = await asyncio.wait_for(AsyncChannel.open(reader, writer, secret, "server"), 5)
            await asyncio.wait_for(channel.recv(), 5)
            channel.send({"silent_ms": int(silent_s() * 1000)})
            await writer.drain()
        except (OSError, EOFError, WireError, asyncio.TimeoutError):
            pass
        finally:
            writer.close()

    port = int(listener.getsockname()[1])
    return await asyncio.start_server(answer, sock=listener), port


async def nobody_decides(secret: bytes, peers: list[tuple[str, int]], silent_ms: int, answer_s: float) -> bool:
    """Whether a majority of the generation is as cut off as this node.

    Args:
        secret: seals the frames.
        peers: address and peer port of every other node of the generation. Without any, nobody else can say it.
        silent_ms: a peer that has not heard the decider for so long is cut off too.
        answer_s: a peer that has not answered by then says nothing.
    """
    if not peers:
        return False
    answers = await asyncio.gather(*(_ask(secret, host, port, answer_s) for host, port in peers))
    cut_off = 1 + sum(answer is not None and answer >= silent_ms for answer in answers)
    return 2 * cut_off > len(peers) + 1


async def _ask(secret: bytes, host: str, port: int, answer_s: float) -> int | None:
    try:
        return await asyncio.wait_for(_answer(secret, host, port), answer_s)
    except (OSError, EOFError, WireError, KeyError, ValueError, asyncio.TimeoutError):
        return None


async def _answer(secret: bytes, host: str, port: int) -> int:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        channel = await AsyncChannel.open(reader, writer, secret, "client")
        channel.send({"kind": "silent?"})
        told: dict[str, Any] = await channel.recv()
        return int(told["silent_ms"])
    finally:
        writer.close()
