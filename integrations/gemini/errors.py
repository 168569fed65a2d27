"""Errors of GEMINI, named by whose fault it is."""

from __future__ import annotations


class GeminiError(Exception):
    """Base of all errors of this package."""


class StateUnknown(GeminiError):
    """Training state holds an object that cannot be carried over.

    Args:
        where: path of the object inside the state.
        what: its type.
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where} holds a {what}, which cannot be captured")
        self.where = where
        self.what = what


class ShardMismatch(GeminiError):
    """A shard does not fit the objects it is to be loaded into, or does not have its digest.

    Args:
        why: the `restore_failed` reason: `digest_mismatch`, `missing`, `topology_mismatch`, `nonfinite`, `timeout`.
        detail: what differs.
    """

    def __init__(self, why: str, detail: str) -> None:
        super().__init__(f"{why}: {detail}")
        self.why = why
        self.detail = detail


class DurableUnreadable(ShardMismatch):
    """A checkpoint of the script cannot be restored from.

    Args:
        why: the `restore_failed` reason.
        detail: what is wrong.
        checkpoint_id: of the checkpoint.
    """

    def __init__(self, why: str, detail: str, checkpoint_id: str) -> None:
        super().__init__(why, f"{checkpoint_id}: {detail}")
        self.checkpoint_id = checkpoint_id


class VaultUnavailable(GeminiError):
    """The vault of this node cannot be reached or refuses."""


class StaleGeneration(VaultUnavailable):
    """The vault is in another generation than the trainer, or was started anew and has not been told of one yet."""


class GenerationOver(VaultUnavailable):
    """A newer plan is carried out: this trainer is about to be stopped, and nothing is wrong with the vault."""


class CopyFailed(GeminiError):
    """A copy that went on behind the loop's back failed or does not end."""
