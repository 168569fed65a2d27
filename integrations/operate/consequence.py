"""What an operator's fact comes to, by the state it meets; above all when nothing follows from it."""

from __future__ import annotations

from lmr.engine import State
from lmr.engine.events import Data, NodeCordoned, NodeUncordoned, OperatorRequested


def nothing_follows(state: State, fact: Data) -> str | None:
    """Why the engine will do nothing about the fact; None when something follows, now or later.

    Args:
        state: just before the fact.
        fact: an operator's.
    """
    match fact:
        case NodeUncordoned(node=name):
            node = state.nodes.get(name)
            if node is None or (node.cordoned_seq is None and node.quarantine is None):
                return f"{name} was not kept out"
        case OperatorRequested(action="resume"):
            if state.hold is None:
                return "the run does not hold"
            if not state.standbys():
                return "there is still no standby; the hold ends by itself when one joins"
        case OperatorRequested(action="restart" | "replace") if state.generation is None:
            return "nothing trains yet"
        case OperatorRequested(action="restart" | "replace") if state.hold is not None:
            return "the run holds for a standby and goes on by itself when one joins"
        case OperatorRequested(action="replace", node=name):
            return _cannot_be_replaced(state, name)
        case _:
            pass
    return None


def also(state: State, fact: Data) -> str | None:
    """What the operator may not expect, although the fact counts.

    Args:
        state: just before the fact.
        fact: an operator's.
    """
    if not isinstance(fact, NodeCordoned):
        return None
    if fact.node not in state.nodes:
        return f"no node {fact.node!r} has joined yet; known: {', '.join(sorted(state.nodes)) or 'none'}"
    if state.is_active(fact.node):
        return f"{fact.node} trains on; `lmr replace` has a standby take its slot"
    return None


def _cannot_be_replaced(state: State, name: str | None) -> str | None:
    generation = state.generation
    if name is None or generation is None or not state.is_active(name):
        active = sorted(generation.slot_of) if generation is not None else []
        return f"{name} does not train; active: {', '.join(active)}"
    leaving = {name} | {generation.slots[slot].node for slot in state.vacant_slots()}
    if len(state.standbys()) < len(leaving):
        return f"no standby is free to take the slot of {name}"
    return None
