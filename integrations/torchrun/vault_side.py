"""This node's vault, as the node runtime sees it: orders go to it, facts come from it, and its loss is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from lmr.engine.events import CheckpointCaptured, CheckpointDropped, CheckpointReplicated, Data, RestoreFailed
from lmr.engine.plan import Assignment
from lmr.integrations.torchrun.orders import Orders
from lmr.integrations.torchrun.vault_link import VaultLink

log = structlog.get_logger("lmr.vault_side")

FLUSH_S = 0.2
"""How long an exit waits for the vault to publish what it holds; the engine settles longer than this."""


class VaultSide:
    """Between the node runtime and its vault; without a vault (checkpointing is off) it says what is missing.

    Args:
        node: this node.
        fact: publishes one fact.
        tell_run: sends the decider what is not a fact.
        on_restorable: called with a generation whose shard is at hand.
        on_progress: called with the newest captured step of this node's slot.
        spawn: runs a coroutine for as long as the runtime lives.
    """

    def __init__(
        self,
        node: str,
        fact: Callable[[Data], None],
        tell_run: Callable[..., None],
        on_restorable: Callable[[int], None],
        on_progress: Callable[[int], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._node = node
        self._fact = fact
        self._tell_run = tell_run
        self._on_restorable = on_restorable
        self._on_progress = on_progress
        self._spawn = spawn
        self._link: VaultLink | None = None
        self._orders: Orders | None = None
        self._copies: dict[tuple[int, int, int], str] = {}
        self._flushed = asyncio.Event()

    async def start(self, socket_name: str, environ: dict[str, str]) -> None:
        """Adopt or start the vault."""
        self._link = VaultLink(socket_name, environ, self._said, self._lost)
        if not await self._link.start():
            log.error("unprotected", why="no vault: training state is not kept on this node")

    @property
    def socket_name(self) -> str:
        """What trainers connect to; empty without a vault."""
        return self._link.socket_name if self._link is not None else ""

    @property
    def port(self) -> int | None:
        """Where peers reach the vault."""
        return self._link.port if self._link is not None else None

    def send(self, kind: str, **values: Any) -> None:
        """Send the vault one message; dropped without a vault."""
        if self._link is not None:
            self._link.send(kind, **values)

    def close(self) -> None:
        """End the vault; its memory vanishes."""
        if self._link is not None:
            self._link.close(end_vault=True)

    # -- orders --------------------------------------------------------------------------------------------------------

    def take(self, orders: Orders) -> None:
        """A new generation: what to restore from where, and who gets replicas."""
        self._orders = orders
        if orders.mine is not None and (orders.step == 0 or self._link is None or not self._link.up):
            self._restore_without_vault(orders, orders.mine)
        self.send(
            "generation",
            generation=orders.generation,
            slot=orders.mine.slot if orders.mine is not None else None,
            ranks=list(orders.ranks),
            replicate_to=list(orders.replicate_to),
            checkpoint={"step": orders.step, "sources": [orders.source] if orders.source is not None else []},
        )

    def _restore_without_vault(self, orders: Orders, mine: Assignment) -> None:
        if orders.step == 0:
            self._on_restorable(orders.generation)
            return
        source = orders.source or {"holder": self._node, "tier": "memory"}
        self.restore_failed(
            {
                "generation": orders.generation,
                "step": orders.step,
                "slot": mine.slot,
                "holder": source["holder"],
                "tier": source["tier"],
                "why": "missing",
            }
        )

    def restore_failed(self, message: dict[str, Any]) -> None:
        """Publish that a source could not be restored from."""
        told = {key: message[key] for key in ("generation", "step", "slot", "holder", "tier", "why")}
        self._fact(RestoreFailed(node=self._node, **told))

    async def flush(self) -> None:
        """Let the vault publish what it holds, so that the facts of an incident find every copy in the log."""
        if self._link is None or not self._link.up:
            return
        self._flushed.clear()
        self._link.send("flush")
        try:
            await asyncio.wait_for(self._flushed.wait(), FLUSH_S)
        except asyncio.TimeoutError:
            log.warning("vault_slow_to_flush")

    # -- what the vault says -------------------------------------------------------------------------------------------

    def _said(self, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "fact":
                self._take_fact(message["type"], message["data"])
            case "digests":
                self._tell_run(**message)
            case "progress":
                self._on_progress(message["step"])
            case "restorable":
                self._on_restorable(message["generation"])
            case "restore_failed":
                self.restore_failed(message)
            case "flushed":
                self._flushed.set()
            case _:
                pass

    def _take_fact(self, kind: str, data: dict[str, Any]) -> None:
        match kind:
            case "checkpoint_captured":
                captured = CheckpointCaptured.model_validate(data)
                self._copies[(captured.generation, captured.step, captured.slot)] = "memory"
                self._fact(captured)
            case "checkpoint_replicated":
                copy = CheckpointReplicated.model_validate(data)
                self._copies[(copy.generation, copy.step, copy.slot)] = "replica"
                self._fact(copy)
            case "checkpoint_dropped":
                dropped = CheckpointDropped.model_validate(data)
                self._copies.pop((dropped.generation, dropped.step, dropped.slot), None)
                self._fact(dropped)
            case _:
                log.error("vault_fact_refused", type=kind)

    def _lost(self) -> None:
        """The vault died: its copies are gone, and the log must know it."""
        for (generation, step, slot), tier in sorted(self._copies.items()):
            dropped = CheckpointDropped(
                generation=generation, step=step, slot=slot, holder=self._node, tier=tier, why="vault_lost"
            )
            self._fact(dropped)
        self._copies.clear()
        log.error("unprotected", why="the vault of this node died; its copies are gone until the next generation")
        self._spawn(self._restart())

    async def _restart(self) -> None:
        if self._link is not None and await self._link.start() and self._orders is not None:
            self.take(self._orders)
