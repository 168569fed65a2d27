"""This node's vault, as the node runtime sees it: orders go to it, facts come from it, and its loss is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import structlog

from lmr.engine.events import (
    CheckpointCaptured,
    CheckpointDropped,
    CheckpointFlushed,
    CheckpointReplicated,
    Data,
    RestoreFailed,
)
from lmr.engine.plan import Assignment
from lmr.integrations.torchrun.orders import Orders
from lmr.integrations.torchrun.vault_link import VaultLink

log = structlog.get_logger("lmr.vault_side")

STARTS = 3
"""How often a vault is started that ends while it starts."""
START_AGAIN_S = 0.5
STOCK_S = 120.0
"""How long a joining agent waits for a vault it adopted to measure what it holds."""
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
        on_unable: called with a reason when this node cannot restore from any source.
        spawn: runs a coroutine for as long as the runtime lives.
        connect: the connection to the vault's process.
    """

    def __init__(
        self,
        node: str,
        fact: Callable[[Data], None],
        tell_run: Callable[..., None],
        on_restorable: Callable[[int], None],
        on_progress: Callable[[int], None],
        on_unable: Callable[[str], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        connect: type[VaultLink] = VaultLink,
    ) -> None:
        self._node = node
        self._fact = fact
        self._tell_run = tell_run
        self._on_restorable = on_restorable
        self._on_progress = on_progress
        self._on_unable = on_unable
        self._spawn = spawn
        self._connect = connect
        self._link: VaultLink | None = None
        self._restarting = False
        self._orders: Orders | None = None
        self._loaded = -1
        self._copies: set[tuple[int, int, int, str]] = set()
        self._flushed = asyncio.Event()
        self._saved: asyncio.Future[dict[str, Any]] | None = None
        self._stock: asyncio.Future[list[dict[str, Any]]] | None = None
        self.held: list[dict[str, Any]] = []
        """Facts about what the vault held when this agent came, for the run it joins."""

    async def start(self, socket_name: str, environ: dict[str, str]) -> None:
        """Adopt or start the vault."""
        self._link = self._connect(socket_name, environ, self._said, self._lost)
        if not await self._start_at_last():
            log.error("unprotected", why="no vault: training state is not kept on this node")
            return
        self.held = await self._take_stock()

    async def _start_at_last(self) -> bool:
        """A vault that is killed while it starts is no vault that cannot be had."""
        for attempt in range(STARTS):
            if attempt:
                await asyncio.sleep(START_AGAIN_S)
            if await self._start():
                return True
        return False

    async def _start(self) -> bool:
        assert self._link is not None
        self._stock = asyncio.get_running_loop().create_future()
        return await self._link.start()

    async def _take_stock(self) -> list[dict[str, Any]]:
        assert self._stock is not None
        try:
            held = await asyncio.wait_for(self._stock, STOCK_S)
        except asyncio.TimeoutError:
            log.error("vault_slow_to_take_stock", waited_s=STOCK_S, why="what it holds is not used")
            return []
        for fact in held:
            self._note(fact["kind"], fact["data"])
        if held:
            log.info("vault_holds", copies=len(held), steps=sorted({fact["data"]["step"] for fact in held}))
        return held

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

    async def save(self, patience_s: float) -> None:
        """This node is about to end: have its vault save what it holds, and say what was saved."""
        if self._link is None or not self._link.up or patience_s <= 0:
            return
        self._saved = asyncio.get_running_loop().create_future()
        self._link.send("save")
        try:
            saved = await asyncio.wait_for(self._saved, patience_s)
        except asyncio.TimeoutError:
            log.error("not_all_saved", waited_s=patience_s, why="checkpoint.grace_s is over")
        else:
            log.info("saved", on_disk=saved["disk"], in_memory=saved["memory"])

    def close(self, *, end_vault: bool, forget: bool = False) -> None:
        """Let go of the vault; `end_vault` makes its memory vanish, else it waits for the node's next agent.

        One that holds nothing has nothing to wait with. With `forget` its copies on disk are deleted.
        """
        if self._link is not None:
            self._link.close(end_vault=end_vault or not self._copies, forget=forget)

    # -- orders --------------------------------------------------------------------------------------------------------

    def take(self, orders: Orders) -> None:
        """A new generation: what to restore from where, and who gets replicas."""
        self._orders = orders
        loaded = self._loaded == orders.generation
        absent = self._link is None or not (self._link.up or self._restarting)  # one that restarts is told then
        if orders.mine is not None and not loaded and (orders.step == 0 or absent):
            self._restore_without_vault(orders, orders.mine)
        self.send(
            "generation",
            generation=orders.generation,
            history=orders.history,
            head=orders.head,
            slot=orders.mine.slot if orders.mine is not None else None,
            ranks=list(orders.ranks),
            replicate_to=list(orders.replicate_to),
            checkpoint={"step": orders.step, "sources": [orders.source] if orders.source is not None else []},
            loaded=loaded,
        )

    def loaded(self, generation: int) -> None:
        """Every trainer of this node has its state: a vault that is restarted from here on need not have it."""
        self._loaded = generation

    def _restore_without_vault(self, orders: Orders, mine: Assignment) -> None:
        if orders.step == 0:
            self._on_restorable(orders.generation)
            return
        if self._link is not None:  # no source is to blame, and others can restore from them
            self._on_unable("this node's vault does not start, so it cannot restore")
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
            case "saved":
                if self._saved is not None and not self._saved.done():
                    self._saved.set_result(message)
            case "held":
                if self._stock is not None and not self._stock.done():
                    self._stock.set_result(message["copies"])
            case "memory":
                log.info("memory_bound", bound_bytes=message["bound_bytes"], limit_bytes=message["limit_bytes"])
            case "degraded":
                log.error("protection_degraded", what=message["what"], why=message["why"])
            case unknown:
                log.warning("vault_said_something_unknown", kind=unknown)

    def _take_fact(self, kind: str, data: dict[str, Any]) -> None:
        fact = self._note(kind, data)
        if fact is None:
            log.error("vault_fact_refused", type=kind)
        else:
            self._fact(fact)

    def _note(self, kind: str, data: dict[str, Any]) -> Data | None:
        """Remember what the vault holds; None for a fact that is not the vault's to tell."""
        match kind:
            case "checkpoint_captured":
                captured = CheckpointCaptured.model_validate(data)
                self._copies.add((captured.generation, captured.step, captured.slot, "memory"))
                return captured
            case "checkpoint_replicated":
                copy = CheckpointReplicated.model_validate(data)
                self._copies.add((copy.generation, copy.step, copy.slot, "replica"))
                return copy
            case "checkpoint_flushed":
                stored = CheckpointFlushed.model_validate(data)
                self._copies.add((stored.generation, stored.step, stored.slot, "disk"))
                return stored
            case "checkpoint_dropped":
                dropped = CheckpointDropped.model_validate(data)
                self._copies.discard((dropped.generation, dropped.step, dropped.slot, dropped.tier))
                return dropped
            case _:
                return None

    def _lost(self) -> None:
        """The vault died: what it had in memory is gone, and the log must know it. What is on disk stays."""
        self._forget([copy for copy in self._copies if copy[3] != "disk"], "vault_lost")
        log.error("unprotected", why="the vault of this node died; its copies are gone; captures go on in the next one")
        self._restarting = True  # at once: a plan may come before the restart begins
        self._spawn(self._restart(self._orders))

    def _forget(self, copies: Iterable[tuple[int, int, int, str]], why: str) -> None:
        for generation, step, slot, tier in sorted(copies):
            self._copies.discard((generation, step, slot, tier))
            dropped = CheckpointDropped(
                generation=generation, step=step, slot=slot, holder=self._node, tier=tier, why=why
            )
            self._fact(dropped)

    def tell_port(self) -> None:
        """Tell the run where peers find the vault: a restarted one listens elsewhere."""
        self._tell_run("vault", port=self.port)

    async def _restart(self, before_it: Orders | None) -> None:
        started = await self._start_at_last()
        self._restarting = False
        if started:
            before = set(self._copies)
            await self._take_stock()
            self._forget(before - self._stocked(), "missing")
            self.tell_port()
        if self._orders is not None and (started or self._orders is not before_it):
            self.take(self._orders)

    def _stocked(self) -> set[tuple[int, int, int, str]]:
        assert self._stock is not None
        held = self._stock.result() if self._stock.done() and not self._stock.cancelled() else []
        return {(f["data"]["generation"], f["data"]["step"], f["data"]["slot"], "disk") for f in held}
