"""Breakers: when one more recovery would only be the last one again."""

from lmr.engine.causes import Verdict
from lmr.engine.commitment import is_rung
from lmr.engine.state import Incident, State

UNCOUNTED_CAUSES = frozenset({"node_loss", "operator"})
"""Machines go and operators ask for reasons of their own: neither counts as lack of progress nor trips its breaker."""


def tripped(state: State, incident: Incident, verdict: Verdict, step: int) -> str | None:
    """The reason to halt instead of restoring `step`, None when the run may go on."""
    if state.recoveries >= state.policy.max_recoveries:
        return "recovery_budget"
    generation = state.generation
    if generation is None or generation.number == 0 or is_rung(state, incident.number):
        return None
    if verdict.cause.kind in UNCOUNTED_CAUSES or step > generation.began_step:
        return None
    return "no_progress" if state.stagnant + 1 >= state.policy.no_progress_generations else None
