"""Folds failure facts into incidents: what opens one, what settles, what decides at once."""

from collections.abc import Iterable

from lmr.engine.events import (
    CheckpointStalled,
    CollectiveDesynced,
    InputStalled,
    LossDiverged,
    OperatorRequested,
    RankHung,
    RankSlowed,
    ReplayChecked,
    StateDiverged,
    WorkerExited,
)
from lmr.engine.state import STALLS, Fact, FactKind, Incident, State
from lmr.engine.straggler import worth_replacing

JOINS_HOLD: frozenset[str] = frozenset({"loss", "device", "sdc", "mismatch", "divergence"})
"""Facts that join a hold; other failures are ignored while the workers are stopped."""


def take(state: State, fact: Fact) -> None:
    """Adds the fact to the incident of this generation, opening one when there is none."""
    operator_halt = fact.kind == "operator" and fact.word == "halt"
    if state.hold is not None and fact.kind not in JOINS_HOLD and not operator_halt:
        return
    if state.generation is None and not operator_halt:
        return
    if state.incident is None:
        continues = fact.kind == "restore" and state.generation is not None
        if continues and state.generation is not None:
            number = state.generation.plan.incident
        else:
            state.incidents += 1
            number = state.incidents
        state.incident = Incident(number, state.now_ms)
    elif state.generation is not None and state.incident.number == state.generation.plan.incident:
        # Something new happened while a restore was being decided again: an episode of its own.
        state.incidents += 1
        state.incident.number = state.incidents
    state.incident.add(fact)


def worker_exited(state: State, seq: int, data: WorkerExited) -> None:
    """A worker of an active node died: of its own (primary), or because a peer vanished (an echo)."""
    if not _current(state, data.generation) or not state.is_active(data.node) or data.in_order:
        return
    ranks = _in_world(state, data.all_ranks)
    if not ranks:
        return
    kind: FactKind = "echo" if data.secondary else "crash"
    fingerprint = (data.error.fingerprint if data.error is not None else None) or ""
    first_echo = kind == "echo" and (state.incident is None or state.incident.awaiting is None)
    take(state, Fact(seq, state.now_ms, kind, (data.node,), ranks, data.step, fingerprint))
    if first_echo and state.incident is not None and state.hold is None:
        state.incident.awaiting = _unfinished(state)


def rank_hung(state: State, seq: int, data: RankHung) -> None:
    """Ranks hold the others up, or something does that could not be localized."""
    _by_ranks(state, seq, "hang", data.generation, data.ranks, data.step)


def collective_desynced(state: State, seq: int, data: CollectiveDesynced) -> None:
    """Ranks issued different collectives."""
    _by_ranks(state, seq, "desync", data.generation, data.ranks, None)


def stalled(state: State, seq: int, data: InputStalled | CheckpointStalled) -> None:
    """A rank waits for storage. Ranks still in the last outage are no news."""
    if data.rank in state.outage and _not_later(data.step, state.outage[data.rank]):
        return
    kind: FactKind = "input_stall" if isinstance(data, InputStalled) else "checkpoint_stall"
    _by_ranks(state, seq, kind, data.generation, (data.rank,), data.step)


def loss_diverged(state: State, seq: int, data: LossDiverged) -> None:
    """The loss of these ranks is not finite."""
    if data.ranks:
        _by_ranks(state, seq, "divergence", data.generation, data.ranks, data.step)


def rank_slowed(state: State, seq: int, data: RankSlowed) -> None:
    """A straggler past both thresholds is an incident when replacing it is worth a recovery; else it is tolerated."""
    policy = state.policy
    past = data.windows >= policy.straggler_windows and data.slowdown_pct >= policy.straggler_pct
    if not past or not _current(state, data.generation) or not _in_world(state, (data.rank,)):
        return
    node = state.node_of_rank(data.rank, data.generation)
    if node is not None and state.hold is None and worth_replacing(state, node, data.slowdown_pct):
        word = str(data.slowdown_pct)
        take(state, Fact(seq, state.now_ms, "straggler", (node,), (data.rank,), word=word))


def corrupt(state: State, seq: int, data: ReplayChecked | StateDiverged, *, in_lineage: bool) -> None:
    """A corrupt verdict condemns its nodes, whatever generation it is about; without any, only the current counts."""
    ranks = _in_world(state, data.ranks)
    nodes = _nodes(state, ranks, data.generation)
    if nodes:
        for name in nodes:
            state.nodes[name].condemn("for_good", seq)
        if in_lineage or any(state.is_active(name) for name in nodes):
            take(state, Fact(seq, state.now_ms, "sdc", nodes, ranks, data.step, binds_step=in_lineage))
    elif _current(state, data.generation):
        peers = _in_world(state, data.peers)
        take(
            state,
            Fact(seq, state.now_ms, "mismatch", _nodes(state, peers, data.generation), peers, data.step),
        )


def operator_requested(state: State, seq: int, data: OperatorRequested) -> None:
    """An operator's request acts once, and only when it can be carried out."""
    if data.request in state.requests:
        return
    state.requests.add(data.request)
    if data.action == "halt":
        take(state, Fact(seq, state.now_ms, "operator", word="halt"))
    elif state.generation is None or state.hold is not None:
        return  # nothing runs; a hold is looked at again after every record anyway
    elif data.action == "restart":
        take(state, Fact(seq, state.now_ms, "operator", word="restart"))
    elif data.action == "replace" and data.node is not None and state.is_active(data.node):
        leaving = {data.node} | {state.generation.slots[slot].node for slot in state.vacant_slots()}
        if len(state.standbys()) >= len(leaving):
            ranks = state.ranks_of_slot(state.generation.slot_of[data.node])
            take(state, Fact(seq, state.now_ms, "operator", (data.node,), ranks, word="replace"))


def confirmed(state: State, name: str, incarnation: str) -> None:
    """The node answered since the first secondary exit."""
    incident = state.incident
    node = state.nodes.get(name)
    if incident is None or incident.awaiting is None or node is None:
        return
    if node.incarnation == incarnation:
        incident.awaiting.discard(name)


def settled(state: State, seq: int) -> None:
    """The settle time ended. When every rank stalled, storage is down and nothing is to be done."""
    incident = state.incident
    if incident is None:
        return
    stalls = incident.of(*STALLS)
    if everyone(state, stalls) and len(stalls) == len(incident.facts):
        state.outage = {rank: fact.step for fact in stalls for rank in fact.ranks}
        state.incident = None
        return
    incident.settled_seq = seq
    incident.deadline_seqs.append(seq)


def everyone(state: State, facts: Iterable[Fact]) -> bool:
    """True when the facts together name every rank."""
    return len({rank for fact in facts for rank in fact.ranks}) == state.world_size


def _by_ranks(
    state: State, seq: int, kind: FactKind, generation: int, ranks: tuple[int, ...], step: int | None
) -> None:
    inside = _in_world(state, ranks)
    if not _current(state, generation) or (ranks and not inside):
        return
    take(state, Fact(seq, state.now_ms, kind, _nodes(state, inside, generation), inside, step))


def _current(state: State, generation: int) -> bool:
    return state.generation is not None and state.generation.number == generation


def _in_world(state: State, ranks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({rank for rank in ranks if rank < state.world_size}))


def _nodes(state: State, ranks: tuple[int, ...], generation: int) -> tuple[str, ...]:
    nodes = {state.node_of_rank(rank, generation) for rank in ranks}
    return tuple(sorted(name for name in nodes if name is not None))


def _unfinished(state: State) -> set[str]:
    generation = state.generation
    if generation is None:
        return set()
    return {a.node for a in generation.slots if a.node not in generation.finished and state.slot_alive(a.slot)}


def _not_later(step: int | None, than: int | None) -> bool:
    return step is None or than is None or step <= than
