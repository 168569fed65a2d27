"""Scores a campaign against the truth. Imports no rule: it judges what was done, not how it was decided."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lmr.engine.campaign.truth import Outcome


@dataclass(slots=True)
class Score:
    """Counts and totals over the incidents of one campaign; durations in virtual milliseconds."""

    incidents: int = 0
    plans: int = 0
    false_evictions: int = 0
    """Machines that left a slot though they were not at fault."""
    false_evictions_identified: int = 0
    """Of these, where the evidence named the culprit: must be 0."""
    missed_faults: int = 0
    """Culprits that should have gone and still hold a slot."""
    needless_plans: int = 0
    """Plans where the right decision was none."""
    false_halts: int = 0
    unsafe_restores: int = 0
    """Steps restored at or above the first bad one: must be 0."""
    unexplained_plans: int = 0
    standbys_used: int = 0
    rollback_steps: int = 0
    avoidable_rollback_steps: int = 0
    """Steps lost beyond what the newest safe step would have cost."""
    detect_ms: int = 0
    decide_ms: int = 0
    recover_ms: int = 0
    resumed: int = 0
    training_ms: int = 0
    total_ms: int = 0
    by_look: Counter[str] = field(default_factory=Counter)

    @property
    def effective_training_permille(self) -> int:
        """Training time that was kept, in thousandths of all time."""
        return 1000 * self.training_ms // self.total_ms if self.total_ms else 1000


def score(outcomes: Iterable[Outcome], *, ms_per_step: int, total_ms: int) -> Score:
    """The score of a campaign's outcomes."""
    found = Score(total_ms=total_ms, training_ms=total_ms)
    for outcome in outcomes:
        _count(found, outcome, ms_per_step)
    found.training_ms = max(0, found.training_ms)
    return found


def _count(found: Score, outcome: Outcome, ms_per_step: int) -> None:
    injection = outcome.injection
    found.incidents += 1
    found.by_look[injection.look] += 1
    found.plans += len(outcome.plans)
    found.unexplained_plans += sum(not plan.has_why for plan in outcome.plans)
    found.false_halts += any(plan.action == "halt" for plan in outcome.plans)
    moves = [plan for plan in outcome.plans if plan.step is not None]
    if not injection.needs_plan:
        found.needless_plans += len(outcome.plans)
    slots = outcome.before
    for plan in moves:
        gone = {node for slot, node in slots.items() if plan.slots.get(slot) != node}
        wrong = gone - injection.culprits
        found.false_evictions += len(wrong)
        found.false_evictions_identified += len(wrong) if injection.identified else 0
        found.standbys_used += len(gone)
        found.unsafe_restores += injection.first_bad_step is not None and (plan.step or 0) >= injection.first_bad_step
        slots = plan.slots
    if injection.must_go and not outcome.closed:
        found.missed_faults += len(injection.culprits & set(slots.values()))
    elif injection.needs_plan and not outcome.plans:
        found.missed_faults += 1
    if moves:
        _count_costs(found, outcome, moves[-1].step or 0, ms_per_step)


def _count_costs(found: Score, outcome: Outcome, step: int, ms_per_step: int) -> None:
    injection = outcome.injection
    lost = max(0, injection.step - step)
    found.rollback_steps += lost
    found.avoidable_rollback_steps += max(0, injection.newest_safe_step - step)
    found.detect_ms += max(0, outcome.first_fact_ms - injection.failed_ms)
    found.decide_ms += max(0, outcome.plans[0].at_ms - outcome.first_fact_ms)
    if outcome.resumed_ms is not None:
        found.resumed += 1
        found.recover_ms += max(0, outcome.resumed_ms - outcome.plans[0].at_ms)
        found.training_ms -= outcome.resumed_ms - injection.failed_ms + lost * ms_per_step
