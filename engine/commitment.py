"""Folds committed plans: what becomes of nodes, steps, counters and memory once a decision stands."""

from lmr.engine.plan import Plan
from lmr.engine.state import Fact, Generation, Hold, Incident, Node, State, Until

_RECENT_RECOVERIES = 33
_UNBLAMED = frozenset({"operator", "sdc", "start"})


def committed(state: State, seq: int, plan: Plan) -> None:
    """The plan stands."""
    state.plan = plan
    state.plans += 1
    state.incidents = max(state.incidents, plan.incident)
    for name in plan.quarantined:
        if name in state.nodes:
            state.nodes[name].condemn(_until(plan), seq)
    if plan.action == "halt" or not _well_placed(state, plan):
        return
    if plan.action == "hold":
        state.hold = Hold(seq, state.now_ms, plan)
        state.hold_passed_seq = None
        if state.incident is None:
            state.incident = Incident(plan.incident, state.now_ms)
        return
    if plan.action in ("restart", "replace"):
        _recovered(state, seq, plan)
    _begin(state, plan)


def _well_placed(state: State, plan: Plan) -> bool:
    """False for a plan no `decide` makes: one that skips slots, goes back, or holds what never ran."""
    if plan.action == "hold":
        return state.generation is not None
    dense = [a.slot for a in plan.assignments] == list(range(state.min_nodes))
    once = len({a.node for a in plan.assignments}) == len(plan.assignments)
    return dense and once and plan.to_generation > state.last_generation


def is_rung(state: State, incident: int) -> bool:
    """True when a plan of this incident only continues the restore the current generation began with."""
    return state.generation is not None and state.generation.plan.incident == incident


def _until(plan: Plan) -> Until:
    if plan.cause.kind in ("sdc", "device_failure"):
        return "for_good"
    return "rejoin" if plan.cause.kind == "node_loss" else "uncordon"


def _recovered(state: State, seq: int, plan: Plan) -> None:
    state.recoveries += 1
    if state.generation is None or plan.checkpoint is None:
        return
    rung = is_rung(state, plan.incident)
    _count_progress(state, state.generation, plan, rung=rung)
    if rung:
        return
    if plan.cause.kind not in _UNBLAMED:
        for name in plan.cause.nodes:
            if name in state.nodes:
                state.nodes[name].blamed_ms.append(state.now_ms)
    replaced = _replaced(state.generation, plan)
    if plan.cause.kind == "operator":
        for name in replaced.intersection(plan.cause.nodes):
            state.nodes[name].cordoned_seq = seq
    if plan.cause.kind == "straggler" and replaced:
        state.memory.straggler_ms = state.now_ms
    if state.incident is not None:
        _remember(state, state.incident, plan, replaced)


def _replaced(generation: Generation, plan: Plan) -> set[str]:
    kept = {(a.node, a.incarnation) for a in plan.assignments}
    return {a.node for a in generation.slots if (a.node, a.incarnation) not in kept}


def _count_progress(state: State, generation: Generation, plan: Plan, *, rung: bool) -> None:
    assert plan.checkpoint is not None
    if generation.number == 0:
        return
    if plan.checkpoint.step > generation.began_step:
        state.stagnant = 0
    elif not rung and plan.cause.kind not in ("node_loss", "operator"):
        state.stagnant += 1


def _remember(state: State, incident: Incident, plan: Plan, replaced: set[str]) -> None:
    memory = state.memory
    memory.incident_opened_ms = incident.opened_ms
    crashes = incident.of("crash")
    match plan.cause.kind, plan.cause.confidence:
        case "software_bug", _:
            fingerprint, step = crashes[0].word if crashes else "", highest_step(crashes)
            before = memory.bugs.get(fingerprint, -1)
            memory.bugs[fingerprint] = None if step is None or before is None else max(step, before)
        case "numeric_divergence", confidence if confidence != "ambiguous":
            step = highest_step(incident.of("divergence"))
            memory.divergence = max(step or 0, memory.divergence or 0)
        case "sdc", "ambiguous":
            memory.mismatches.update(frozenset(fact.nodes) for fact in incident.of("mismatch"))
    for fact in crashes:
        _remember_crash(state, fact, plan, replaced)


def _remember_crash(state: State, fact: Fact, plan: Plan, replaced: set[str]) -> None:
    if not fact.word or fact.step is None:
        return
    memory, key, node = state.memory, (fact.word, fact.step), fact.nodes[0]
    memory.crashes.setdefault(key, set()).add(node)
    if plan.cause.kind == "process_crash" and node in replaced:
        for other, nodes in memory.crashes.items():
            if other[0] == fact.word and node in nodes:
                memory.evicted_crashes.setdefault(other, set()).add(node)


def highest_step(facts: list[Fact]) -> int | None:
    """The highest step the facts name; None when one of them names none."""
    steps = [fact.step for fact in facts]
    known = [step for step in steps if step is not None]
    return max(known) if known and len(known) == len(steps) else None


def lowest_step(facts: list[Fact]) -> int | None:
    """The lowest step the facts name; None when one of them names none."""
    steps = [fact.step for fact in facts]
    known = [step for step in steps if step is not None]
    return min(known) if known and len(known) == len(steps) else None


def _begin(state: State, plan: Plan) -> None:
    step = plan.checkpoint.step if plan.checkpoint is not None else 0
    state.generation = Generation(
        number=plan.to_generation,
        plan=plan,
        planned_ms=state.now_ms,
        began_step=step,
        slots=plan.assignments,
        slot_of={a.node: a.slot for a in plan.assignments},
    )
    for assignment in plan.assignments:
        state.nodes.setdefault(assignment.node, Node(assignment.node))
    state.last_generation = plan.to_generation
    state.layouts[plan.to_generation] = plan.assignments
    # The script's own start is no step that anybody made: nothing of earlier generations is in it.
    initial = plan.checkpoint is None or plan.checkpoint.trust == "initial"
    kept = -1 if initial else step
    state.lineage.restored(plan.to_generation, kept)
    state.copies.discard_above(kept)
    state.corrupt = {bad: at for bad, at in state.corrupt.items() if bad <= kept}
    state.incident = None
    state.hold = None
    state.hold_passed_seq = None
    state.outage = {}
    state.enough_seq = None
    state.placing_passed = False
    state.initial_failed_seq = None


def resumed(state: State) -> None:
    """Training goes on: how long the recovery took is kept for the cost-aware rules."""
    opened_ms = state.memory.incident_opened_ms
    if opened_ms is not None:
        state.memory.recoveries_ms.append(state.now_ms - opened_ms)
        del state.memory.recoveries_ms[:-_RECENT_RECOVERIES]
        state.memory.incident_opened_ms = None
