"""Hands captures of this trainer to the vault: at once, or when a copy that goes on has ended."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lmr.integrations.frameworks.agent_link import AgentLink
from lmr.integrations.frameworks.pytorch.state import TrainingState
from lmr.integrations.frameworks.trainer_context import TrainerContext
from lmr.integrations.gemini.capture import ShardWriter, Unfinished
from lmr.integrations.gemini.client import VaultClient
from lmr.integrations.gemini.errors import CopyFailed, VaultUnavailable
from lmr.integrations.gemini.pace import Pace
from lmr.integrations.gemini.shard import ShardMeta

_GRANT_PATIENCE_S = 0.005
_FIRST_GRANT_PATIENCE_S = 0.5
_COPY_PATIENCE_S = 60.0


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
        self.skipped = 0
        """Captures the vault had no buffer for."""
        self.torn = 0
        """Captures somebody wrote into while they were copied; dropped."""

    def vault(self) -> VaultClient:
        """The connection to the vault.

        Raises:
            VaultUnavailable: this node has none, or it cannot be reached.
        """
        if self._vault is None:
            if self._context.vault_socket is None:
                raise VaultUnavailable("this node has none")
            self._vault = VaultClient(self._context.vault_socket, self._context.rank, self._context.generation)
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
        collection, tree, peers = self._state.collect(step)
        meta = self._writer.plan(collection, tree)
        vault, patience_s = self.vault(), _GRANT_PATIENCE_S
        if meta.total_bytes > self._arena_bytes:
            self._arena_bytes = meta.total_bytes + meta.tree_bytes  # room for a tree that grows
            vault.request_arena(self._arena_bytes)
            patience_s = _FIRST_GRANT_PATIENCE_S
        granted = vault.grant(patience_s)
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
            vault.captured(step, meta, peers)

    def settle(self, *, wait: bool = True) -> None:
        """Hand a capture over whose copy has ended; one that somebody wrote into is dropped.

        To be called by the thread that trains, before anything writes to parameters: whatever that thread wrote has
        then been counted by torch.

        Args:
            wait: for a copy that goes on; otherwise nothing happens to it.

        Raises:
            CopyFailed: it failed or does not end.
            VaultUnavailable: the vault is gone.
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
        if intact:
            self.vault().captured(pending.step, pending.meta, pending.peers)
        else:
            self.torn += 1

    def close(self) -> None:
        """Leave the vault; what was granted goes back to it."""
        self.pending = None
        if self._vault is not None:
            self._vault.close()
            self._vault = None
