"""What really happened: the injected culprit and its first bad step. Known to the generator and the scorer only."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Injection:
    """One injected failure."""

    number: int
    cause: str
    """The published cause it was drawn as."""
    look: str
    """How it shows: `device`, `loss`, `sdc`, ..."""
    culprits: frozenset[str]
    """Machines at fault; empty when none is."""
    must_go: bool
    """True when a culprit may not run on: its hardware or results are bad, or it is gone."""
    identified: bool
    """True when the emitted evidence names every culprit."""
    first_bad_step: int | None
    """Steps from here on hold bad state."""
    newest_safe_step: int
    """The best step a perfect decider could have restored."""
    step: int
    """Where training was."""
    failed_ms: int
    needs_plan: bool
    """False for false alarms and outages: the right decision is none."""


@dataclass(slots=True)
class Outcome:
    """What was done about it, as seen from outside: the plans, and when training went on."""

    injection: Injection
    first_fact_ms: int
    before: dict[int, str]
    """Slot to node when it happened."""
    plans: list["PlanSeen"] = field(default_factory=list)
    resumed_ms: int | None = None
    closed: bool = False


@dataclass(frozen=True, slots=True)
class PlanSeen:
    """A committed plan, as an agent sees it."""

    at_ms: int
    action: str
    reason: str
    slots: dict[int, str]
    step: int | None
    has_why: bool
    """True when it cites evidence and rejected options."""
