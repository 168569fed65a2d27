"""What an agent says of copies that its vault held before it joined: in memory that survived, and on disk."""

from __future__ import annotations

from typing import Any

from lmr.engine.events import CheckpointCaptured, CheckpointFlushed, CheckpointReplicated, Data

_KINDS: dict[str, type[CheckpointCaptured | CheckpointReplicated | CheckpointFlushed]] = {
    "checkpoint_captured": CheckpointCaptured,
    "checkpoint_replicated": CheckpointReplicated,
    "checkpoint_flushed": CheckpointFlushed,
}


def read(node: str, held: list[dict[str, Any]], *, reopened: bool) -> list[Data]:
    """The facts of an agent's hello.

    Args:
        node: who says it.
        held: facts as `{"kind", "data"}`.
        reopened: whether the run was started again. In a run that goes on, a capture of the node's earlier life is one
            more copy in its memory: a replica.

    Raises:
        KeyError, ValueError: not such facts, or of another node.
    """
    found: list[Data] = []
    for told in held:
        fact = _KINDS[told["kind"]].model_validate(told["data"])
        if isinstance(fact, CheckpointCaptured):
            holder = fact.node
            if not reopened:
                fact = CheckpointReplicated(
                    generation=fact.generation, step=fact.step, slot=fact.slot, holder=holder, digest=fact.digest
                )
        else:
            holder = fact.holder
        if holder != node:
            raise ValueError(f"{node} speaks of copies of {holder}")
        found.append(fact)
    return found
