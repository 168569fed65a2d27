"""When a straggler is worth a recovery.

The plain rule (no horizon): a standby is free, something complete can be restored, and no straggler was replaced within
the blame window. With `horizon_s` the gain until the horizon must also exceed the cost of the recovery:

    gain = remaining * p / (100 + p)       a job that waits for a rank p percent slower runs at 100 / (100 + p)
    cost = median recovery of this log + steps lost * time per step of this generation
"""

from lmr.engine.plan import Economics
from lmr.engine.state import State
from lmr.engine.steps import StepChooser, Wanted


def worth_replacing(state: State, node: str, slowdown_pct: int) -> bool:
    """True when the straggler's node is to be replaced now."""
    generation = state.generation
    if generation is None or node in generation.finished:
        return False
    needed = len(set(state.vacant_slots()) | {generation.slot_of[node]})
    if len(state.standbys()) < needed or _replaced_lately(state):
        return False
    if StepChooser(state).choose(Wanted("latest")) is None or not _something_complete(state):
        return False
    figures = economics(state, slowdown_pct)
    return figures is None or figures.gain_ms > figures.cost_ms


def economics(state: State, slowdown_pct: int) -> Economics | None:
    """Both sides of the cost-aware rule, None when the plain rule decides."""
    policy = state.policy
    if policy.horizon_s is None or state.opened_ms is None:
        return None
    remaining_ms = max(0, policy.horizon_s * 1000 - (state.now_ms - state.opened_ms))
    return Economics(
        gain_ms=remaining_ms * slowdown_pct // (100 + slowdown_pct),
        cost_ms=_recovery_ms(state) + _lost_ms(state),
    )


def _recovery_ms(state: State) -> int:
    """Median of the log's newest recoveries; before the first, what the policy allows for a start."""
    known = sorted(state.memory.recoveries_ms)
    return known[len(known) // 2] if known else state.policy.start_s * 1000


def _lost_ms(state: State) -> int:
    generation = state.generation
    choice = StepChooser(state).choose(Wanted("latest"))
    if generation is None or choice is None or generation.highest_step is None:
        return 0
    first, last = generation.first_seen, generation.last_seen
    if first is None or last is None or last[0] <= first[0]:
        return 0
    lost_steps = max(0, generation.highest_step - choice.step)
    return lost_steps * (last[1] - first[1]) // (last[0] - first[0])


def _replaced_lately(state: State) -> bool:
    at_ms = state.memory.straggler_ms
    return at_ms is not None and state.now_ms - at_ms <= state.policy.blame_window_s * 1000


def _something_complete(state: State) -> bool:
    choice = StepChooser(state).choose(Wanted("latest"))
    return choice is not None and choice.snapshot is not None
