"""Ranks that are slower than their equals, window after window.

All ranks of a synchronous job take equally long for a step; what differs is how much of it is own work and how much is
waiting for the slowest. So own work, waiting for data and saving are compared, each between ranks of one role (equal
optimizer and parameter shapes). Of three and more an outlier by the modified z-score is slow. Of two, only a rank that
became slower than its own history while the other did not.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from lmr.integrations.scout.detector_policy import StragglerPolicy
from lmr.integrations.scout.robust import modified_z
from lmr.integrations.scout.standing import Standing
from lmr.integrations.scout.summary import Summary

Component = Literal["compute", "communication", "input", "checkpoint_io"]
_OWN: dict[Component, Callable[[Summary], int]] = {
    "compute": lambda view: view.own_us,
    "input": lambda view: view.data_us,
    "checkpoint_io": lambda view: view.save_us,
}
Key = tuple[int, Component]
PARTS = 5
"""Of a window; up to two of them may hold a pause without effect."""


@dataclass(frozen=True)
class Slow:
    """A rank has been slow for `windows` in a row and makes every step `slowdown_pct` percent longer than without."""

    rank: int
    component: Component
    slowdown_pct: int
    windows: int


@dataclass(frozen=True)
class Window:
    """What each rank did per step between two moments, in microseconds."""

    step_us: float
    """A step where nobody is slow."""
    per_step: dict[Component, dict[int, float]]
    roles: dict[int, int]
    groups: dict[int, float]
    """Communication itself, by group: what the last to enter still waited, per step."""


@dataclass
class StragglerDetector:
    """Cuts the run into windows and judges each.

    Args:
        policy: thresholds.
    """

    policy: StragglerPolicy
    _cuts: list[dict[int, Summary]] = field(default_factory=list)
    """Where the present window and its parts begin and end."""
    _cut_ms: int = 0
    _history: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    _group_history: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    _streaks: dict[Key, list[int]] = field(default_factory=dict)

    def look(self, standing: Standing, now_ms: int) -> list[Slow]:
        """Judge a window when one is full. The standing must be complete."""
        views = {view.rank: view for view in standing.views()}
        if not views or any(view.steps_here < 2 for view in views.values()):
            return []
        if not self._cuts or self._cuts[-1].keys() != views.keys():
            self._cuts, self._cut_ms = [views], now_ms
            return []
        steps = min(view.steps_here - self._cuts[-1][rank].steps_here for rank, view in views.items())
        wanted = max(1, self.policy.window_steps // PARTS)
        if now_ms - self._cut_ms < self.policy.window_ms // PARTS or steps < wanted:
            return []
        self._cuts.append(views)
        self._cut_ms = now_ms
        if len(self._cuts) <= PARTS:
            return []
        window = measure(self._cuts, standing)
        self._cuts = [views]
        return self._judge(window, standing)

    def _judge(self, window: Window, standing: Standing) -> list[Slow]:
        slow: dict[Key, int] = {}
        for component, values in window.per_step.items():
            for peers in _by_role(window.roles):
                slow |= {
                    (rank, component): pct
                    for rank, pct in self._outliers(component, {r: values[r] for r in peers}, window.step_us).items()
                }
        for rank, pct in self._slow_links(window, standing).items():
            slow[(rank, "communication")] = pct
        self._remember(window, slow)
        return self._persistent(slow)

    def _outliers(self, component: Component, values: dict[int, float], step_us: float) -> dict[int, int]:
        """Slow ranks among peers, with what each costs."""
        if component == "checkpoint_io":  # often one rank saves for all: not slow, just busy
            values = {rank: value for rank, value in values.items() if value > 0}
        if len(values) < 2:
            return {}
        if len(values) == 2:
            return self._slower_than_itself(component, values, step_us)
        middle = statistics.median(values.values())
        floor = step_us * self.policy.spread_floor_pct / 100
        found = {}
        for rank, value in values.items():
            z = modified_z(value, list(values.values()), floor)
            pct = _cost_pct(value - middle, step_us)
            if z * 100 > self.policy.outlier_z_hundredths and pct >= self.policy.least_slowdown_pct:
                found[rank] = pct
        return found if 2 * len(found) < len(values) else {}

    def _slower_than_itself(self, component: Component, values: dict[int, float], step_us: float) -> dict[int, int]:
        became: dict[int, int] = {}
        for rank, value in values.items():
            history = self._history[(rank, component)]
            if len(history) < self.policy.history_windows:
                return {}
            became[rank] = _cost_pct(value - statistics.median(history), step_us)
        slow = [rank for rank, pct in became.items() if pct >= self.policy.least_slowdown_pct]
        calm = [rank for rank, pct in became.items() if 2 * pct < self.policy.least_slowdown_pct]
        return {slow[0]: became[slow[0]]} if len(slow) == len(calm) == 1 else {}

    def _slow_links(self, window: Window, standing: Standing) -> dict[int, int]:
        """The one rank that all slow groups share and no healthy group holds."""
        suspects: set[int] | None = None
        cleared: set[int] = set()
        slow_groups, worst = 0, 0
        for group, value in window.groups.items():
            history = self._group_history[group]
            members = standing.members.get(group, ())
            if len(history) < self.policy.history_windows or len(members) < 2:
                continue
            usual = statistics.median(history)
            pct = _cost_pct(value - usual, window.step_us)
            if pct >= self.policy.least_slowdown_pct and value > 1.5 * usual:
                slow_groups += 1
                worst = max(worst, pct)
                suspects = set(members) if suspects is None else suspects & set(members)
            elif value <= 1.1 * usual:
                cleared |= set(members)
        left = (suspects or set()) - cleared
        return {left.pop(): worst} if slow_groups >= 2 and len(left) == 1 else {}

    def _remember(self, window: Window, slow: dict[Key, int]) -> None:
        """A slow window is not what is usual."""
        keep = 4 * self.policy.history_windows
        for component, values in window.per_step.items():
            for rank, value in values.items():
                if (rank, component) not in slow:
                    history = self._history[(rank, component)]
                    history.append(value)
                    del history[:-keep]
        if not any(component == "communication" for _, component in slow):
            for group, value in window.groups.items():
                self._group_history[group].append(value)
                del self._group_history[group][:-keep]

    def _persistent(self, slow: dict[Key, int]) -> list[Slow]:
        """Those whose row of windows is long enough; told again each time the row has doubled."""
        self._streaks = {key: [*self._streaks.get(key, []), pct] for key, pct in slow.items()}
        found = []
        for (rank, component), pcts in sorted(self._streaks.items()):
            rounds, rest = divmod(len(pcts), self.policy.windows)
            if rest == 0 and rounds & (rounds - 1) == 0 and rounds > 0:
                found.append(Slow(rank, component, round(statistics.median(pcts)), len(pcts)))
        return found


def measure(cuts: list[dict[int, Summary]], standing: Standing) -> Window:
    """What happened per step in a window.

    The parts' median, not the mean: a pause of one rank falls into one part. Saves are rare, so of them it is the mean.
    """
    parts = list(pairwise(cuts))
    first, last = cuts[0], cuts[-1]
    per_step: dict[Component, dict[int, float]] = {
        component: {rank: statistics.median(_rate(a[rank], b[rank], of) for a, b in parts) for rank in last}
        for component, of in _OWN.items()
    }
    per_step["checkpoint_io"] = {rank: _rate(first[rank], last[rank], _OWN["checkpoint_io"]) for rank in last}
    waited = [statistics.median(_rate(a[rank], b[rank], lambda v: v.waited_us) for a, b in parts) for rank in last]
    # What a step takes where nobody is slow: usual work, and the waiting that even the last to arrive has to do.
    # Waiting for somebody else's evaluation or save is no part of it.
    usual = statistics.median(per_step["compute"][rank] + per_step["input"][rank] for rank in last)
    roles = {rank: view.role for rank, view in last.items()}
    return Window(max(1.0, usual + min(waited)), per_step, roles, _group_times(first, last, standing))


def _rate(before: Summary, after: Summary, of: Callable[[Summary], int]) -> float:
    return (of(after) - of(before)) / (after.steps_here - before.steps_here)


def _group_times(before: dict[int, Summary], after: dict[int, Summary], standing: Standing) -> dict[int, float]:
    """Time per step in each group's collectives themselves: the member that waited least came last."""
    found: dict[int, float] = {}
    for group, members in standing.members.items():
        times = []
        for rank in members:
            new = after[rank].group(group) if rank in after else None
            old = before[rank].group(group) if rank in before else None
            steps = after[rank].steps_here - before[rank].steps_here if rank in after else 0
            if new is None or old is None or new.calls - old.calls < steps:
                break
            times.append((new.waited_us - old.waited_us) / steps)
        else:
            if times:
                found[group] = min(times)
    return found


def _by_role(roles: dict[int, int]) -> Iterable[list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for rank, role in roles.items():
        found[role].append(rank)
    return found.values()


def _cost_pct(excess_us: float, step_us: float) -> int:
    """How much longer a step is because of the excess, in percent of the step without it."""
    return max(0, int(excess_us * 100 / step_us))
