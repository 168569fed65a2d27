"""What a node tells the run about one of its ranks, a few times a second. Not a fact: never in the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmr.integrations.scout.page import Phase, Reading

RECENT_TOLD = 12
_NS_PER_US = 1_000
_NS_PER_MS = 1_000_000


class SummaryInvalid(Exception):
    """A node sent something that is no summary."""


@dataclass(frozen=True)
class GroupState:
    """Where a rank stands in one process group."""

    id: int
    entered: int
    fingerprint: int
    done: int
    waited_us: int
    calls: int


@dataclass(frozen=True)
class Summary:
    """One rank at one moment; `still_ms` is how long nothing changed, by its own machine's clock."""

    rank: int
    step: int | None
    steps_here: int
    micro: int
    phase: Phase
    waiting: bool
    waiting_group: int
    still_ms: int
    state: str
    """As in /proc: R, S, D, T (stopped), Z; X when the process is gone."""
    nonfinite_step: int | None = None
    role: int = 0
    batches: int = 0
    longest_step_ms: int = 0
    longest_data_ms: int = 0
    longest_save_ms: int = 0
    own_us: int = 0
    waited_us: int = 0
    data_us: int = 0
    save_us: int = 0
    checked_step: int | None = None
    """Newest step whose state was looked at again before the next step wrote to it."""
    damaged_step: int | None = None
    """Newest step whose state was then not what the step had left."""
    strayed_step: int | None = None
    """First step whose batch was another than its sampler prescribes."""
    fresh: bool = False
    """The loader has not given its first batch since its iteration began."""
    longest_first_ms: int = 0
    """The longest wait for a first batch."""
    groups: tuple[GroupState, ...] = ()
    recent: tuple[tuple[int, int, int], ...] = ()
    """Newest collectives: group id, sequence, fingerprint."""

    @property
    def stopped(self) -> bool:
        """Somebody stopped the process; it would go on if told to."""
        return self.state == "T"

    @property
    def gone(self) -> bool:
        """The process has ended; its supervisor says how."""
        return self.state in ("X", "Z")

    @property
    def position(self) -> tuple[int, int, int]:
        """How far in the run: step, micro-step, phase."""
        return (self.step or 0, self.micro, int(self.phase))

    def group(self, identity: int) -> GroupState | None:
        """Where the rank stands in a group."""
        return next((g for g in self.groups if g.id == identity), None)


def summarize(reading: Reading, state: str, now_ns: int) -> Summary:
    """A page's contents as told to the run."""
    return Summary(
        rank=reading.rank,
        step=reading.step,
        steps_here=reading.steps_here,
        micro=reading.micro,
        phase=reading.phase,
        waiting=reading.waiting,
        waiting_group=reading.waiting_group,
        still_ms=max(0, now_ns - reading.since_ns) // _NS_PER_MS,
        state=state,
        nonfinite_step=reading.nonfinite_step,
        role=reading.role,
        batches=reading.batches,
        longest_step_ms=max(reading.step_times_ns, default=0) // _NS_PER_MS,
        longest_data_ms=reading.longest_data_ns // _NS_PER_MS,
        longest_save_ms=reading.longest_save_ns // _NS_PER_MS,
        own_us=reading.own_ns // _NS_PER_US,
        waited_us=reading.waited_ns // _NS_PER_US,
        data_us=reading.data_ns // _NS_PER_US,
        save_us=reading.save_ns // _NS_PER_US,
        checked_step=reading.checked_step,
        damaged_step=reading.damaged_step,
        strayed_step=reading.strayed_step,
        fresh=reading.fresh,
        longest_first_ms=reading.longest_first_ns // _NS_PER_MS,
        groups=tuple(
            GroupState(g.id, g.entered, g.fingerprint, g.done, g.waited_ns // _NS_PER_US, g.calls)
            for g in reading.groups
        ),
        recent=reading.recent[-RECENT_TOLD:],
    )


_NUMBERS = (
    "rank",
    "steps_here",
    "micro",
    "waiting_group",
    "still_ms",
    "role",
    "batches",
    "longest_step_ms",
    "longest_data_ms",
    "longest_save_ms",
    "own_us",
    "waited_us",
    "data_us",
    "save_us",
)
_STEPS = ("step", "nonfinite_step", "checked_step", "damaged_step", "strayed_step")
"""Absent where there is none; a stream recorded by an older version may lack some."""


def to_wire(summary: Summary) -> dict[str, Any]:
    """As JSON."""
    told: dict[str, Any] = {name: getattr(summary, name) for name in _NUMBERS}
    told |= {
        **{name: getattr(summary, name) for name in _STEPS},
        "phase": int(summary.phase),
        "waiting": summary.waiting,
        "fresh": summary.fresh,
        "longest_first_ms": summary.longest_first_ms,
        "state": summary.state,
        "groups": [[g.id, g.entered, g.fingerprint, g.done, g.waited_us, g.calls] for g in summary.groups],
        "recent": [list(entry) for entry in summary.recent],
    }
    return told


def from_wire(told: dict[str, Any]) -> Summary:
    """The summary of a JSON object.

    Raises:
        SummaryInvalid: it is none.
    """
    try:
        steps = {name: None if told.get(name) is None else int(told[name]) for name in _STEPS}
        return Summary(
            **{name: int(told[name]) for name in _NUMBERS},
            step=steps["step"],
            nonfinite_step=steps["nonfinite_step"],
            checked_step=steps["checked_step"],
            damaged_step=steps["damaged_step"],
            strayed_step=steps["strayed_step"],
            fresh=bool(told.get("fresh", False)),
            longest_first_ms=int(told.get("longest_first_ms", 0)),
            phase=Phase(told["phase"]),
            waiting=bool(told["waiting"]),
            state=str(told["state"]),
            groups=tuple(GroupState(*map(int, group)) for group in told["groups"]),
            recent=tuple((int(g), int(s), int(f)) for g, s, f in told["recent"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SummaryInvalid(repr(error)) from error
