"""What the vault of one node may take, computed as soon as the size of the state is known.

    own      ranks of the node x buffers a rank x size of a rank's state
    others   slots held for others x (steps of each + the one that arrives) x size of a slot's state,
             and once more for the own step that a restore brought here

Memory is in memfds: it counts as the machine's or control group's, never against the size of `/dev/shm`. What does not
fit is refused at once and said with its numbers, instead of failing in the middle of a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmr.integrations.gemini.checkpoint_policy import CheckpointPolicy

_GIB = 1 << 30


@dataclass(frozen=True)
class Budget:
    """Bytes a vault may take.

    Attributes:
        own_bytes: for the captures of this node's ranks.
        others_bytes: for copies of other slots.
        limit_bytes: what the machine, the control group or the policy lets it have.
    """

    own_bytes: int
    others_bytes: int
    limit_bytes: int

    @property
    def bound_bytes(self) -> int:
        """The most this vault ever takes."""
        return (self.own_bytes if self.own_fits else 0) + (self.others_bytes if self.others_fit else 0)

    @property
    def own_fits(self) -> bool:
        """Whether this node's state can be captured."""
        return self.own_bytes <= self.limit_bytes

    @property
    def others_fit(self) -> bool:
        """Whether copies for others can be held besides."""
        own = self.own_bytes if self.own_fits else 0
        return own + self.others_bytes <= self.limit_bytes

    def refusals(self) -> list[tuple[str, str]]:
        """What is not protected and why, with the cure."""
        found = []
        if not self.own_fits:
            why = f"they need {_gib(self.own_bytes)}, {_gib(self.limit_bytes)} can be had: lower checkpoint.buffers"
            found.append(("captures", why))
        if not self.others_fit:
            left = self.limit_bytes - (self.own_bytes if self.own_fits else 0)
            cure = "lower checkpoint.replicas, checkpoint.replica_copies or checkpoint.buffers"
            found.append(
                ("copies of other nodes", f"they need {_gib(self.others_bytes)}, {_gib(left)} are left: {cure}")
            )
        return found


def compute(
    policy: CheckpointPolicy, ranks: int, rank_bytes: int, slot_bytes: int, buffers: int, limit_bytes: int
) -> Budget:
    """The budget of one node.

    Args:
        policy: counts.
        ranks: of this node's slot; 0 when it stands by.
        rank_bytes: capacity of one buffer.
        slot_bytes: size of one slot's state.
        buffers: of each rank.
        limit_bytes: what there is for the vault, what it already has included.
    """
    slots = policy.replicas if ranks else max(policy.replicas, policy.standby_slots)
    return Budget(
        own_bytes=ranks * buffers * rank_bytes,
        others_bytes=(slots * (policy.replica_copies + 1) + 1) * slot_bytes,
        limit_bytes=limit_bytes if policy.memory_max_bytes is None else min(limit_bytes, policy.memory_max_bytes),
    )


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
