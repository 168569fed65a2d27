"""Hands captures of this trainer to the vault: at once, or when a copy that goes on has ended.

A vault that dies is started again by the node runtime. The trainer looks for it at later boundaries and never waits for
it: what listens answers a call on this node at once, what does not refuses it at once. The new vault's first grant is
taken where it is found, at the boundary after. Until then steps are not captured, and training goes on.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from lmr.integrations.frameworks.agent_link import AgentLink
from lmr.integrations.frameworks.pytorch.state import TrainingState
from lmr.integrations.frameworks.trainer_context import TrainerContext
from lmr.integrations.gemini.capture import ShardWriter, Unfinished
from lmr.integrations.gemini.client import CONNECT_S, VaultClient
from lmr.integrations.gemini.errors import CopyFailed, GenerationOver, StaleGeneration, VaultUnavailable
from lmr.integrations.gemini.pace import Pace
from lmr.integrations.gemini.shard import ShardMeta

_GRANT_PATIENCE_S = 0.005
_FIRST_GRANT_PATIENCE_S = 0.5
_COPY_PATIENCE_S = 60.0
_LOOK_AGAIN_S = 1.0
"""Least time between two looks for a vault that is away."""
_LOOK_AGAIN_MOST_S = 60.0
"""Should vaults go on dying, each is looked for twice as long after its death as the one before, up to this."""


@dataclass
class Pending:
    """A capture that is not the vault's yet, because its copy goes on."""

    step: int
    meta: ShardMeta
    peers: list[int] | None
    copy: Unfinished
    began_s: float
    """How long the loop waited for its beginning."""


class Captures:
    """The captures of one trainer, and its connection to the vault.

    Args:
        context: who the trainer is.
        agent: hears what is not protected.
        state: what is captured.
    """

    def __init__(self, context: TrainerContext, agent: AgentLink, state: TrainingState) -> None:
        self._context = context
        self._agent = agent
        self._state = state
        must_be_finite = bool(context.checkpoint.get("require_finite", True))
        self._writer = ShardWriter(context.rank, require_finite=must_be_finite)
        self._pace = Pace(context.checkpoint.get("copy_mode", "auto"))
        self._vault: VaultClient | None = None
        self._arena_bytes = 0
        self.pending: Pending | None = None
        self.saved_step = 0
        """The newest step that the script saved itself."""
        self._away = False
        """Whether the vault was lost, or not found, since the last capture that was handed over."""
        self._losses = 0
        self._over = False
        """Whether a newer generation has begun: this process is about to be stopped."""
        self._look_at_s = 0.0
        self.skipped = 0
        """Captures the vault had no buffer for, or was not there for."""
        self.torn = 0
        """Captures somebody wrote into while they were copied; dropped."""

    def vault(self) -> VaultClient:
        """The connection to the vault.

        Raises:
            VaultUnavailable: this node has none, or it cannot be reached.
        """
        if self._vault is None:
            context, connect_s = self._context, 0.0 if self._away else CONNECT_S
            if context.vault_socket is None:
                raise VaultUnavailable("this node has none")
            self._vault = VaultClient(context.vault_socket, context.rank, context.generation, connect_s)
        return self._vault

    def take(self, step: int, *, busy: bool) -> None:
        """Capture everything as it is now.

        Args:
            step: completed steps.
            busy: whether forward and backward follow, behind which a copy may go on.

        Raises:
            GeminiError: it cannot be captured, now or ever.
        """
        self.settle()
        if self._context.vault_socket is None:
            raise VaultUnavailable("this node has none")
        if self._over or (self._vault is None and time.monotonic() < self._look_at_s):
            self.skipped += 1
            return
        try:
            self._take(step, busy=busy)
        except VaultUnavailable as error:
            self.skipped += 1
            self._lose(error)

    def _take(self, step: int, *, busy: bool) -> None:
        vault, patience_s = self.vault(), _GRANT_PATIENCE_S
        collection, tree, peers = self._state.collect(step)
        meta = self._writer.plan(collection, tree)
        if meta.total_bytes > self._arena_bytes:
            self._arena_bytes = meta.total_bytes + meta.tree_bytes  # room for a tree that grows
            vault.request_arena(self._arena_bytes)
            patience_s = _FIRST_GRANT_PATIENCE_S
        granted = vault.grant(0.0 if self._away else patience_s)
        if granted is None:
            self.skipped += 1
            return
        background = busy and self._pace.background(meta.tensor_bytes)
        began = time.perf_counter()
        copy = self._writer.write(granted.number, granted.memory, collection, tree, meta, background=background)
        took_s = time.perf_counter() - began
        if self._writer.frozen.betrayed:
            self._agent.degraded("reuse of frozen parameters", "they are written to without a trace: copied every time")
        if background:
            self.pending = Pending(step, meta, peers, copy, took_s)
        else:
            self._pace.was_foreground(meta.tensor_bytes, took_s)
            self._hand_over(vault, step, meta, peers)

    def _hand_over(self, vault: VaultClient, step: int, meta: ShardMeta, peers: list[int] | None) -> None:
        if step == self.saved_step:
            vault.check(step)
        vault.captured(step, meta, peers)
        if self._away:
            self._away = False
            self._agent.back("vault", f"it is back, captures go on with step {step}")

    def _lose(self, error: VaultUnavailable) -> None:
        """The vault is away: let go of its memory, say so once, and look for it later. No copy goes on."""
        wait_s = _LOOK_AGAIN_S
        if self._vault is not None:
            if not isinstance(error, StaleGeneration):
                wait_s = min(_LOOK_AGAIN_S * 2**self._losses, _LOOK_AGAIN_MOST_S)
                self._losses += 1
            self._vault.close()
            self._vault = None
        self._arena_bytes = 0
        self._writer.forget()
        self._away = True
        self._look_at_s = time.monotonic() + wait_s
        self._over = isinstance(error, GenerationOver)
        if self._over:
            return
        self._agent.degraded("vault", f"{error}; nothing is captured until it is back")

    def check(self, step: int) -> None:
        """The script saves a step: have its capture, which was made or is the next, checked for certain.

        May be called on any thread. A vault that is away is told with the capture.
        """
        self.saved_step = step
        vault = self._vault
        if vault is not None:
            with contextlib.suppress(VaultUnavailable):  # the next capture meets it, too
                vault.check(step)

    def done_reading(self) -> None:
        """The restored shard is no longer needed; a vault that has gone meanwhile need not know."""
        if self._vault is None:
            return
        try:
            self._vault.done_reading()
        except VaultUnavailable as error:
            self._lose(error)

    def settle(self, *, wait: bool = True) -> None:
        """Hand a capture over whose copy has ended; one that somebody wrote into is dropped.

        To be called by the thread that trains, before anything writes to parameters: whatever that thread wrote has
        then been counted by torch.

        Args:
            wait: for a copy that goes on; otherwise nothing happens to it.

        Raises:
            CopyFailed: it failed or does not end.
        """
        pending = self.pending
        if pending is None or not (wait or pending.copy.done()):
            return
        self.pending = None
        began = time.perf_counter()
        if not pending.copy.wait(_COPY_PATIENCE_S):
            raise CopyFailed(f"the copy of step {pending.step} has not ended within {_COPY_PATIENCE_S:.0f} s")
        intact = pending.copy.intact()
        waited_s = pending.began_s + time.perf_counter() - began
        self._pace.was_background(pending.meta.tensor_bytes, waited_s, intact=intact)
        if not intact:
            self.torn += 1
            return
        try:
            self._hand_over(self.vault(), pending.step, pending.meta, pending.peers)
        except VaultUnavailable as error:
            self._lose(error)

    def close(self) -> None:
        """Leave the vault; what was granted goes back to it."""
        self.pending = None
        if self._vault is not None:
            self._vault.close()
            self._vault = None
