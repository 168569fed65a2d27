"""The decision: what the rules say should happen now. A pure function of the state, and the page to read first.

1. A halted run closes. A run whose workers have all finished closes too.
2. Enough nodes and no generation yet: place them.
3. An incident that is due is decided:
     what failed            causes.py      the most specific cause of the settled facts
     halt?                  the cause says so, or a breaker trips (breakers.py)
     which step             steps.py       newest that the cause's trust allows, below the first bad one
     which machines         machines.py    survivors keep their slots; a standby takes each vacant one
     too few standbys       hold, until some join or the wait ends
   Every plan says what it rests on (`evidence`) and what it passed over and why (`rejected`).
4. Otherwise nothing.
"""

from lmr.engine.breakers import tripped
from lmr.engine.causes import Verdict, classify, first_bad_step
from lmr.engine.drafting import close_event, plan_event
from lmr.engine.events import Event
from lmr.engine.machines import Placement, first_layout, leaving_slots, place, unfit
from lmr.engine.plan import Action, Cause, Checkpoint, Rejected, Source
from lmr.engine.state import BAD_STATE, Generation, Incident, State
from lmr.engine.steps import Choice, StepChooser, Wanted

VERIFIED_ONLY = frozenset({"sdc", "numeric_divergence"})
"""Causes after which a step that nobody checked will not do."""


def decide(state: State) -> Event | None:
    """The next decision due now, None when there is none. Never raises on well-formed records."""
    if state.closed is not None or state.opened_ms is None:
        return None
    if state.plan is not None and state.plan.action == "halt":
        return close_event(state, "halted", state.plan.reason)
    generation, incident = state.generation, state.incident
    if generation is None:
        return _halt_by_operator(state, incident) if incident is not None else _start(state)
    if len(generation.finished) == len(generation.slots) and state.hold is None:
        return close_event(state, "succeeded", "workers_finished")
    if incident is None or not (incident.due or state.hold is not None):
        return None
    return _recover(state, generation, incident)


def _recover(state: State, generation: Generation, incident: Incident) -> Event | None:
    verdict = classify(state, incident)
    if verdict.halt is not None:
        return _halt(state, incident, verdict, verdict.halt, verdict.why_halt)
    if state.hold is not None and len(state.standbys()) < len(leaving_slots(state, verdict)):
        if state.hold_passed_seq is None:
            return None
        return _halt(state, incident, verdict, "no_standby", "wait_ended")
    wanted = Wanted(
        verdict.trust,
        below=first_bad_step(incident),
        verified_only=verdict.cause.kind in VERIFIED_ONLY or not incident.kinds.isdisjoint(BAD_STATE),
    )
    chooser = StepChooser(state)
    choice = chooser.choose(wanted)
    if choice is None:
        return _halt(state, incident, verdict, "no_restorable_state", "nothing_to_restore", chooser.why_nothing(wanted))
    trip = tripped(state, incident, verdict, choice.step)
    if trip is not None:
        why = "budget_used" if trip == "recovery_budget" else "would_repeat"
        return _halt(state, incident, verdict, trip, why, choice.rejected)
    placement = place(state, generation, verdict, choice.snapshot)
    if placement is None:
        return _hold(state, incident, verdict)
    return _move(state, generation, incident, verdict, choice, placement)


def _move(
    state: State,
    generation: Generation,
    incident: Incident,
    verdict: Verdict,
    choice: Choice,
    placement: Placement,
) -> Event:
    """Restart, or replace: the next generation, from the chosen step, on the placed machines."""
    action: Action = "replace" if placement.replaced else "restart"
    operator = verdict.cause.kind == "operator"
    gone = {generation.slots[slot].node for slot in state.vacant_slots()}
    # A node that finished and went is replaced without blame; one the operator took out is cordoned instead.
    newly = placement.replaced - gone - (frozenset(verdict.cause.nodes) if operator else frozenset())
    rejected = [*choice.rejected, *placement.rejected]
    if action == "restart":
        rejected.append(Rejected(option="replace", reason=verdict.why_stay, evidence=()))
    else:
        rejected.append(Rejected(option="restart", reason=_why_leave(state, verdict), evidence=()))
    rejected.extend(
        Rejected(option=f"replace {name}", reason="not_enough_standbys", evidence=())
        for name in placement.left_in_place
    )
    rejected.append(Rejected(option="halt", reason="recoverable", evidence=()))
    nodes = tuple(a.node for a in placement.assignments)
    return plan_event(
        state,
        incident,
        verdict,
        action,
        to_generation=state.last_generation + 1,
        assignments=placement.assignments,
        quarantined=tuple(sorted({*state.quarantined(), *newly})),
        standby=placement.standby,
        checkpoint=_checkpoint(state, choice, nodes, newly, generation.highest_step),
        reason=verdict.reason,
        rejected=tuple(rejected),
    )


def _hold(state: State, incident: Incident, verdict: Verdict) -> Event:
    """Training waits: a slot is vacant and nobody may take it."""
    rejected = [
        *unfit(state),
        Rejected(option="restart", reason=_why_leave(state, verdict), evidence=()),
        Rejected(option="replace", reason="not_enough_standbys", evidence=()),
        Rejected(option="halt", reason="waiting_for_standby", evidence=()),
    ]
    return _stay(state, incident, verdict, "hold", "no_standby", tuple(rejected))


def _halt(
    state: State,
    incident: Incident,
    verdict: Verdict,
    reason: str,
    why: str,
    passed_over: tuple[Rejected, ...] = (),
) -> Event:
    """The run ends with its reason."""
    rejected = (
        *passed_over,
        Rejected(option="restart", reason=why, evidence=()),
        Rejected(option="hold", reason="not_needed" if reason != "no_standby" else "wait_ended", evidence=()),
    )
    return _stay(state, incident, verdict, "halt", reason, rejected)


def _stay(
    state: State, incident: Incident, verdict: Verdict, action: Action, reason: str, rejected: tuple[Rejected, ...]
) -> Event:
    return plan_event(
        state,
        incident,
        verdict,
        action,
        to_generation=state.last_generation,
        assignments=state.generation.slots if state.generation is not None else (),
        quarantined=tuple(state.quarantined()),
        standby=tuple(node.name for node in state.standbys()),
        checkpoint=None,
        reason=reason,
        rejected=rejected,
    )


def _start(state: State) -> Event | None:
    """The first nodes to join take the slots, in join order; after reopening, from the best step left."""
    if len(state.nodes) < state.min_nodes or (state.reopened and not state.placing_passed):
        return None
    nodes = state.standbys()
    if len(nodes) < state.min_nodes:
        return None
    chosen = nodes[: state.min_nodes]
    incident = Incident(state.incidents + 1, state.now_ms)
    cause = Cause(kind="start", nodes=(), ranks=(), confidence="direct")
    verdict = Verdict(cause, "initial_placement", tuple(node.joined_seq for node in chosen))
    choice = StepChooser(state).choose(Wanted("certified"))
    if choice is None:
        why = StepChooser(state).why_nothing(Wanted("certified"))
        return _halt(state, incident, verdict, "no_restorable_state", "nothing_to_restore", why)
    layout = first_layout(state, chosen)
    return plan_event(
        state,
        incident,
        verdict,
        "start",
        to_generation=state.last_generation + 1,
        assignments=layout,
        quarantined=tuple(state.quarantined()),
        standby=tuple(node.name for node in nodes[state.min_nodes :]),
        checkpoint=_checkpoint(state, choice, tuple(a.node for a in layout), frozenset(), state.left_step),
        reason=verdict.reason,
        rejected=(*choice.rejected, *unfit(state)),
    )


def _halt_by_operator(state: State, incident: Incident) -> Event:
    return _halt(state, incident, classify(state, incident), "operator_halt", "operator_asked")


def _checkpoint(
    state: State, choice: Choice, nodes: tuple[str, ...], leaving: frozenset[str], highest: int | None
) -> Checkpoint:
    sources: tuple[Source, ...] = ()
    if choice.snapshot is not None:
        sources = StepChooser(state).sources(choice.snapshot, nodes, leaving)
    lost = max(0, (highest or 0) - choice.step)
    return Checkpoint(step=choice.step, trust=choice.trust, lost_steps=lost, sources=sources)


def _why_leave(state: State, verdict: Verdict) -> str:
    """Why the machines cannot simply restart."""
    return "node_gone" if state.vacant_slots() else verdict.why_leave
