"""The 21 effects, and what each is made of here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effect:
    """One kind of fault.

    Args:
        name: as in campaign files.
        text: what happens to the training.
        needs_runner: whether it is done from outside the trainer.
    """

    name: str
    text: str
    needs_runner: bool = False


_ALL = (
    Effect("tensor_corruption", "one bit of one parameter of the rank flips after its step"),
    Effect("stale_state", "parameters and optimizer state of the rank are put back to where they were before its step"),
    Effect("drop", "the rank loses an update, a collective call or a batch"),
    Effect("duplicate", "the rank applies an update twice, calls a collective twice or gets a batch twice"),
    Effect("reorder", "the rank calls two collectives, or gets two batches, in the other order"),
    Effect("delay", "each of the rank's steps takes longer"),
    Effect("hang", "the rank stops in the middle of a step and stays"),
    Effect("timeout", "the rank comes so late that the others' collectives time out"),
    Effect("exception", "the rank raises an error the script does not handle"),
    Effect("resource_exhaustion", "the rank's address space is limited and filled until an allocation fails"),
    Effect("process_termination", "SIGKILL to the rank's process, or to all that runs on its node", needs_runner=True),
    Effect("resource_unavailable", "the rank's input blocks in the kernel and never comes"),
    Effect("checkpoint_corruption", "bits flip in all copies the node's vault holds; then the rank dies", True),
    Effect(
        "checkpoint_truncation", "all but the start of all copies in the node's vault is lost; then the rank dies", True
    ),
    Effect("checkpoint_missing", "the node's vault is killed and all its copies with it; then the rank dies", True),
    Effect("io_error", "reading the rank's batch fails with EIO of the kernel"),
    Effect("payload_corruption", "one bit of a reduced gradient flips as the rank receives it"),
    Effect("collective_desync", "the rank calls another collective than the others"),
    Effect("message_drop", "the kernel drops whatever other ranks send to the rank from then on"),
    Effect("network_partition", "the node's network goes down, in a network namespace of its own", needs_runner=True),
    Effect("config_drift", "the node is started with another environment than the others", needs_runner=True),
)
EFFECTS: dict[str, Effect] = {effect.name: effect for effect in _ALL}
