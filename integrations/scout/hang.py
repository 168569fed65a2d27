"""Nobody gets on: who holds the others up?

Ranks wait for each other in collectives, so one stuck rank stops all. Whoever waits in collective number 118 of a
group waits for the members that have not entered it. These may wait elsewhere for others again; at the end of every
such chain is a rank that waits for nobody and still does not move. DDP reduces below Python: there a rank that has
all its gradients waits for those that are behind in the step. Where neither names a minority, nobody is named.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmr.engine.events import Collective
from lmr.integrations.scout.detector_policy import HangPolicy
from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.standing import Standing
from lmr.integrations.scout.summary import Summary


@dataclass(frozen=True)
class Hang:
    """Nobody has got on for `stalled_ms`; `ranks` hold the others up, none if it cannot be told."""

    ranks: tuple[int, ...]
    step: int | None
    phase: str
    stalled_ms: int
    collective: Collective | None
    witness: int | None
    """A rank that waits, whose stack shows for what."""


def find(standing: Standing, policy: HangPolicy, *, input_has_detector: bool) -> Hang | None:
    """The hang there is now, if so. The standing must be complete.

    Args:
        standing: of the run.
        policy: thresholds.
        input_has_detector: ranks that wait for data are somebody else's matter.
    """
    views = standing.views()
    if not views:
        return None
    threshold_ms = stillness_ms(views, policy)
    stopped = [view for view in views if view.stopped]
    if stopped:
        return _stopped(standing, views, stopped, threshold_ms)
    if any(_is_excused(view, policy) for view in views):
        return None
    stillest = max(view.still_ms for view in views)
    if min(view.still_ms for view in views) < threshold_ms // 2 or stillest < threshold_ms:
        return None
    culprits = _culprits(standing, views)
    if input_has_detector and any(v.phase == Phase.DATA for v in culprits or views):
        return None
    if culprits:
        if max(view.still_ms for view in culprits) < threshold_ms:
            return None
    elif min(view.still_ms for view in views) < threshold_ms * policy.unlocalized_factor:
        return None
    return _described(standing, views, culprits)


def _stopped(standing: Standing, views: list[Summary], stopped: list[Summary], threshold_ms: int) -> Hang | None:
    """Somebody stopped these processes. What the others do makes no difference, unless the whole job was suspended."""
    if len(stopped) == len(views) or max(view.still_ms for view in stopped) < threshold_ms:
        return None
    return _described(standing, views, stopped if 2 * len(stopped) <= len(views) else [])


def stillness_ms(views: list[Summary], policy: HangPolicy) -> int:
    """How long nothing may happen in this run."""
    return max(policy.floor_ms, policy.step_factor * max(view.longest_step_ms for view in views))


def _is_excused(view: Summary, policy: HangPolicy) -> bool:
    """Whether the rank may take its time, and with it those that wait for it."""
    warming_up = view.steps_here == 0
    return (view.phase.is_long or warming_up) and view.still_ms < policy.long_section_s * 1000


def _culprits(standing: Standing, views: list[Summary]) -> list[Summary]:
    """The minority that holds the others up; empty when there is none."""
    by_rank = {view.rank: view for view in views}
    waits_for = {view.rank: _awaited(standing, view, views) for view in views}
    ends = {awaited for awaited_by in waits_for.values() for awaited in awaited_by if not waits_for[awaited]}
    found = [by_rank[rank] for rank in sorted(ends)]
    if not found:
        # Who waits as well is held up itself: its data ended before that of the others, say.
        found = [view for view in _behind_the_front(views) if not view.waiting]
    working = [view for view in found if not view.waiting]
    found = working or found
    if found:
        least = min(view.position for view in found)
        if 2 * len(found) > len(views):
            found = [view for view in found if view.position == least]
    return found if found and 2 * len(found) <= len(views) else []


def _awaited(standing: Standing, view: Summary, views: list[Summary]) -> list[int]:
    """Ranks this one waits for."""
    if view.waiting:
        groups = [g for g in view.groups if view.waiting_group in (0, g.id)]
        awaited = set()
        for group in groups:
            members = standing.members.get(group.id, ())
            for other in views:
                theirs = other.group(group.id)
                if other.rank in members and (theirs.entered if theirs is not None else 0) < group.entered:
                    awaited.add(other.rank)
        return sorted(awaited)
    if view.phase == Phase.REDUCE:
        return [other.rank for other in views if other.role == view.role and other.position < view.position]
    return []


def _behind_the_front(views: list[Summary]) -> list[Summary]:
    """Ranks behind the place most have reached; empty without such a place."""
    front = max(view.position for view in views)
    behind = [view for view in views if view.position < front]
    return behind if 2 * (len(views) - len(behind)) > len(views) else []


def _described(standing: Standing, views: list[Summary], culprits: list[Summary]) -> Hang:
    named = {view.rank for view in culprits}
    others = [view for view in views if view.rank not in named]
    waiting = [view for view in others if view.waiting and view.waiting_group]
    collective = None
    if waiting:
        first = min(waiting, key=lambda view: view.rank)
        group = first.group(first.waiting_group)
        if group is not None:
            call = standing.calls.get(group.fingerprint, "unknown")
            name = standing.names.get(group.id, str(group.id))
            collective = Collective(group=name, seq=group.entered, op=call)
    shown = min(culprits or views, key=lambda view: view.position)
    witness = min(waiting or others, key=lambda view: view.rank).rank if waiting or others else None
    return Hang(
        ranks=tuple(sorted(named)),
        step=shown.step,
        phase=phase_name(shown),
        stalled_ms=max(view.still_ms for view in culprits or views),
        collective=collective,
        witness=witness,
    )


def phase_name(view: Summary) -> str:
    """What the rank is doing, in the words of the log."""
    if view.waiting or view.phase == Phase.REDUCE:
        return "collective"
    return view.phase.name.lower()
