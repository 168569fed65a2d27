"""Writes a decision down: the plan's fields, its id, and the event that carries it."""

from lmr.engine.causes import Verdict
from lmr.engine.events import Event, PlanCommitted, RunClosed
from lmr.engine.plan import Action, Assignment, Checkpoint, Economics, Plan, Rejected
from lmr.engine.state import Incident, State
from lmr.engine.straggler import economics
from lmr.engine.version import ENGINE_VERSION

_MOST_EVIDENCE = 256


def plan_event(
    state: State,
    incident: Incident,
    verdict: Verdict,
    action: Action,
    *,
    to_generation: int,
    assignments: tuple[Assignment, ...],
    quarantined: tuple[str, ...],
    standby: tuple[str, ...],
    checkpoint: Checkpoint | None,
    reason: str,
    rejected: tuple[Rejected, ...],
) -> Event:
    """The `plan_committed` event of a decision taken now."""
    figures = _figures(state, incident, verdict) if action == "replace" else None
    draft = Plan(
        plan_id="",
        run_id=state.run_id,
        incident=incident.number,
        from_generation=state.last_generation,
        to_generation=to_generation,
        action=action,
        cause=verdict.cause,
        assignments=assignments,
        quarantined=quarantined,
        standby=standby,
        checkpoint=checkpoint,
        reason=reason,
        evidence=_evidence(state, incident, verdict),
        rejected=rejected,
        economics=figures,
        decided_through=state.seq,
        policy_digest=state.policy.digest(),
        engine=ENGINE_VERSION,
    )
    plan = draft.model_copy(update={"plan_id": Plan.id_of(draft)})
    return Event(PlanCommitted.type, state.now_ms, "decider", PlanCommitted(plan=plan))


def close_event(state: State, outcome: str, reason: str) -> Event:
    """The `run_closed` event of a decision taken now."""
    data = RunClosed.model_validate({"outcome": outcome, "reason": reason})
    return Event.of(data, at_ms=state.now_ms, source="decider")


def _evidence(state: State, incident: Incident, verdict: Verdict) -> tuple[int, ...]:
    """Seqs of what the cause rests on, of the deadlines that passed, and of what else bound the plan."""
    seqs = set(verdict.evidence[:_MOST_EVIDENCE]) | set(incident.deadline_seqs)
    binding = incident.of("loss", "device", "sdc", "mismatch", "divergence", "restore")
    seqs.update(fact.seq for fact in binding[:_MOST_EVIDENCE])
    if state.hold is not None:
        seqs.add(state.hold.plan_seq)
    if state.hold_passed_seq is not None:
        seqs.add(state.hold_passed_seq)
    return tuple(sorted(seqs))


def _figures(state: State, incident: Incident, verdict: Verdict) -> Economics | None:
    slow = incident.of("straggler")
    if verdict.cause.kind != "straggler" or not slow:  # a later rung of its restore names no new slowdown
        return None
    return economics(state, max(int(fact.word) for fact in slow))
