"""The agents that are connected to the decider."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lmr.integrations.wire import AsyncChannel


@dataclass(eq=False)
class Session:
    """One agent's connection."""

    node: str
    incarnation: str
    channel: AsyncChannel
    address: str
    vault_port: int | None
    peer_port: int
    failure_domain: str | None = None
    replicate_to: tuple[dict[str, Any], ...] = ()
    heard: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    said_goodbye: bool = False
    alive: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of_hello(cls, hello: dict[str, Any], channel: AsyncChannel) -> Session:
        """From an agent's first message.

        Raises:
            KeyError: something is missing in it.
        """
        told = ("node", "incarnation", "address", "vault_port", "peer_port", "failure_domain")
        return cls(channel=channel, **{key: hello[key] for key in told})

    def send(self, kind: str, **values: Any) -> None:
        """Queue one message to the agent."""
        if not self.channel.writer.is_closing():
            self.channel.send({"kind": kind, **values})


class Sessions(dict[str, Session]):
    """Connected agents by node."""

    def tell(self, nodes: Iterable[str], kind: str, **values: Any) -> None:
        """Queue one message to those of `nodes` that are connected."""
        for node in nodes:
            if (session := self.get(node)) is not None:
                session.send(kind, **values)

    def heard_now(self) -> None:
        """Nobody could be heard for a while that was not their fault: leases start anew."""
        now = asyncio.get_running_loop().time()
        for session in self.values():
            session.heard = now
