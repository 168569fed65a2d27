"""Which machine takes which slot.

A survivor keeps its slot, so ranks never move. A vacant slot goes to the standby that already holds its shard of the
step to restore, then to one in another failure domain than the node it replaces, then in join order.
"""

from dataclasses import dataclass

from lmr.engine.causes import Verdict
from lmr.engine.plan import Assignment, Rejected
from lmr.engine.snapshots import Snapshot
from lmr.engine.state import Generation, Node, State
from lmr.engine.steps import StepChooser

_MOST_REJECTED = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """Who runs which slot next, who was replaced, and who is left over."""

    assignments: tuple[Assignment, ...]
    replaced: frozenset[str]
    """Nodes whose slot went to another life."""
    left_in_place: tuple[str, ...]
    """Blamed nodes that stay because no standby is free for them."""
    standby: tuple[str, ...]
    rejected: tuple[Rejected, ...]


def leaving_slots(state: State, verdict: Verdict) -> list[int]:
    """Slots that need another machine: the life is over, the node is condemned, or the cause says so."""
    generation = state.generation
    if generation is None:
        return []
    return [
        a.slot
        for a in generation.slots
        if not state.slot_alive(a.slot) or a.node in verdict.must_leave or state.nodes[a.node].quarantine is not None
    ]


def place(state: State, generation: Generation, verdict: Verdict, snapshot: Snapshot | None) -> Placement | None:
    """The next layout, None when standbys do not suffice."""
    standbys = state.standbys()
    slots = leaving_slots(state, verdict)
    if len(standbys) < len(slots):
        return None
    optional = sorted(slot for name in verdict.may_leave if (slot := generation.slot_of[name]) not in slots)
    taken = optional[: len(standbys) - len(slots)]
    kept = tuple(generation.slots[slot].node for slot in optional[len(taken) :])
    slots = sorted(slots + taken)
    chosen = _choose(state, generation, slots, standbys, snapshot)
    assignments = tuple(_assign(a, chosen.get(a.slot)) for a in generation.slots)
    used = {node.name for node in chosen.values()}
    return Placement(
        assignments,
        frozenset(generation.slots[slot].node for slot in slots),
        kept,
        tuple(node.name for node in standbys if node.name not in used),
        _not_chosen(state, chosen, standbys, snapshot),
    )


def first_layout(state: State, nodes: list[Node]) -> tuple[Assignment, ...]:
    """Slots 0..N-1 in join order."""
    size = state.local_world_size
    return tuple(
        Assignment(
            slot=slot,
            node=node.name,
            incarnation=node.incarnation or "",
            first_rank=slot * size,
            local_world_size=size,
        )
        for slot, node in enumerate(nodes)
    )


def _choose(
    state: State, generation: Generation, slots: list[int], standbys: list[Node], snapshot: Snapshot | None
) -> dict[int, Node]:
    """Slot to standby. Shards first over all slots, so that nobody takes the standby another slot's shard is on."""
    chooser = StepChooser(state)
    free = list(standbys)
    chosen: dict[int, Node] = {}
    for need_shard in (True, False):
        for slot in slots:
            able = [node for node in free if not need_shard or chooser.holds(snapshot, slot, node.name)]
            if slot in chosen or not able:
                continue
            old = state.nodes[generation.slots[slot].node]
            chosen[slot] = min(able, key=lambda node: (_nearness(node, old), node.joined_seq))
            free.remove(chosen[slot])
    return chosen


def _nearness(node: Node, old: Node) -> int:
    """0 for another failure domain than the old node's, 1 when unknown, 2 for the same."""
    if node.failure_domain is None or old.failure_domain is None:
        return 1
    return 2 if node.failure_domain == old.failure_domain else 0


def _assign(old: Assignment, node: Node | None) -> Assignment:
    if node is None:
        return old
    return Assignment(
        slot=old.slot,
        node=node.name,
        incarnation=node.incarnation or "",
        first_rank=old.first_rank,
        local_world_size=old.local_world_size,
    )


def _not_chosen(
    state: State, chosen: dict[int, Node], standbys: list[Node], snapshot: Snapshot | None
) -> tuple[Rejected, ...]:
    """Why each standby left over was passed over, and which nodes may not serve."""
    if not chosen:
        return ()
    used = {node.name for node in chosen.values()}
    found = [
        Rejected(option=f"standby {node.name}", reason=_why_passed(state, chosen, node, snapshot), evidence=())
        for node in standbys
        if node.name not in used
    ]
    return (*found, *unfit(state))[:_MOST_REJECTED]


def _why_passed(state: State, chosen: dict[int, Node], node: Node, snapshot: Snapshot | None) -> str:
    chooser = StepChooser(state)
    for slot, winner in sorted(chosen.items()):
        if winner.joined_seq > node.joined_seq:
            return "shard_elsewhere" if chooser.holds(snapshot, slot, winner.name) else "same_failure_domain"
    return "joined_later"


def unfit(state: State) -> list[Rejected]:
    """Live nodes without a slot that may not take one, and why."""
    found = []
    for node in sorted(state.nodes.values(), key=lambda node: node.joined_seq):
        if not node.live or state.is_active(node.name) or node.eligible:
            continue
        if node.quarantine is not None:
            reason, seq = "quarantined", node.quarantine.seq
        elif node.cordoned_seq is not None:
            reason, seq = "cordoned", node.cordoned_seq
        else:
            reason, seq = "drifted", node.drifted_seq or 0
        found.append(Rejected(option=f"standby {node.name}", reason=reason, evidence=(seq,)))
    return found[:_MOST_REJECTED]
