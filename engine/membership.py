"""Folds what is known about machines: who lives, which life of it, and who may not serve."""

from lmr.engine.events import ConfigDrifted, DeviceUnhealthy, NodeJoined, NodeLeft, NodeLost
from lmr.engine.incident import take
from lmr.engine.state import Fact, Node, State


def known(state: State, name: str) -> Node:
    """The node's entry; a node may be cordoned or condemned before it ever joins."""
    return state.nodes.setdefault(name, Node(name))


def joined(state: State, seq: int, data: NodeJoined) -> None:
    """A life never seen before is admitted; one that was seen is a duplicate or a ghost and changes nothing."""
    node = known(state, data.node)
    if data.incarnation in node.incarnations:
        return
    old_life_ran = node.live
    node.incarnations.add(data.incarnation)
    node.incarnation = data.incarnation
    node.live = True
    node.joined_seq = seq
    node.failure_domain = data.failure_domain
    node.drifted_seq = None
    node.gone_seq = None
    if node.quarantine is not None and node.quarantine.until == "rejoin":
        node.quarantine = None
    if old_life_ran:
        _life_ended(state, seq, data.node, "node_rejoined")
    count_for_placing(state, seq)


def gone(state: State, seq: int, data: NodeLost | NodeLeft) -> None:
    """The life ended. A finished node may go; a standby is simply no longer there."""
    node = state.nodes.get(data.node)
    if node is None or not node.live or node.incarnation != data.incarnation:
        return
    if _runs_unfinished(state, data.node):
        node.condemn("rejoin", seq)
    node.live = False
    node.gone_seq = seq
    _life_ended(state, seq, data.node, "node_lost" if isinstance(data, NodeLost) else "node_left")
    count_for_placing(state, seq)


def device_unhealthy(state: State, seq: int, data: DeviceUnhealthy) -> None:
    """A fatal device condemns its node for good, whatever the node does now."""
    if data.severity != "fatal":
        return
    node = known(state, data.node)
    node.condemn("for_good", seq)
    if node.live and _runs_unfinished(state, data.node):
        slot = _slot(state, data.node)
        take(state, Fact(seq, state.now_ms, "device", (data.node,), state.ranks_of_slot(slot), word=data.metric))
    count_for_placing(state, seq)


def config_drifted(state: State, seq: int, data: ConfigDrifted) -> None:
    """A drifted node is not placed until a new life of it joins."""
    node = state.nodes.get(data.node)
    if node is not None and node.live and node.drifted_seq is None:
        node.drifted_seq = seq
    count_for_placing(state, seq)


def cordoned(state: State, seq: int, name: str) -> None:
    """The operator keeps the node out of future plans."""
    node = known(state, name)
    if node.cordoned_seq is None:
        node.cordoned_seq = seq
    count_for_placing(state, seq)


def uncordoned(state: State, seq: int, name: str) -> None:
    """The operator lets the node serve again; what is condemned for good stays condemned."""
    node = state.nodes.get(name)
    if node is None:
        return
    node.cordoned_seq = None
    if node.quarantine is not None and node.quarantine.until == "uncordon":
        node.quarantine = None
    count_for_placing(state, seq)


def silent(state: State, seq: int) -> None:
    """The start deadline passed: nodes that have not started their workers count as lost."""
    generation = state.generation
    if generation is None:
        return
    for assignment in generation.slots:
        name = assignment.node
        if name not in generation.started and name not in generation.finished and state.slot_alive(assignment.slot):
            state.nodes[name].condemn("rejoin", seq)
            ranks = state.ranks_of_slot(assignment.slot)
            take(state, Fact(seq, state.now_ms, "loss", (name,), ranks, word="node_silent"))


def reopened(state: State, seq: int) -> None:
    """The run was started again: every life before is over, the next plan places anew."""
    for node in state.nodes.values():
        if node.live:
            node.live = False
            node.gone_seq = seq
    if state.generation is not None:
        state.left_step = state.generation.highest_step
    state.generation = None
    state.incident = None
    state.hold = None
    state.hold_passed_seq = None
    state.reopened += 1
    state.enough_seq = None
    state.placing_passed = False


def count_for_placing(state: State, seq: int) -> None:
    """After reopening, notes the moment from which the nodes are enough to place."""
    if state.generation is not None or not state.reopened:
        return
    enough = len(state.standbys()) >= state.min_nodes
    if not enough:
        state.enough_seq = None
        state.placing_passed = False
    elif state.enough_seq is None:
        state.enough_seq = seq
        state.enough_ms = state.now_ms


def _life_ended(state: State, seq: int, name: str, word: str) -> None:
    if not state.is_active(name):
        return
    if state.incident is not None and state.incident.awaiting is not None:
        state.incident.awaiting.discard(name)
    if _runs_unfinished(state, name) and not state.slot_alive(_slot(state, name)):
        take(state, Fact(seq, state.now_ms, "loss", (name,), state.ranks_of_slot(_slot(state, name)), word=word))


def _slot(state: State, name: str) -> int:
    assert state.generation is not None
    return state.generation.slot_of[name]


def _runs_unfinished(state: State, name: str) -> bool:
    return state.is_active(name) and state.generation is not None and name not in state.generation.finished
