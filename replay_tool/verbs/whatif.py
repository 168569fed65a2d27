"""`whatif`: the recorded facts under another policy, or without some of them.

Recorded and new decisions are compared by what they do. As long as they do the same, the facts that followed would have
followed. At the first that does not, the rest of the log is the story of a run that would not have been: `unknown
from here`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from lmr.engine.deadlines import next_deadline
from lmr.engine.events import (
    DECISIONS,
    CheckpointCaptured,
    CheckpointReplicated,
    DeadlinePassed,
    Event,
    PlanCommitted,
    RunOpened,
)
from lmr.engine.policy import RecoveryPolicy
from lmr.engine.record import Record
from lmr.engine.reduce import apply, pass_over
from lmr.engine.state import State
from lmr.replay_tool.counterfactual import Effect, Replay, told_apart
from lmr.replay_tool.errors import NotInLog, ReplayError, Unreadable
from lmr.replay_tool.history import fold
from lmr.replay_tool.printing import Progress, silent
from lmr.replay_tool.sentences import plan_headline
from lmr.replay_tool.source import Log, open_source

_SLACK_MS = 1_000
_COPIES = frozenset({CheckpointCaptured.type, CheckpointReplicated.type})


@dataclass(frozen=True)
class Outcome:
    """One side of a change, in words and figures. `recovery_ms` is the log's own median for its action."""

    headline: str
    action: str
    at_ms: int
    lost_steps: int | None
    standbys_used: int | None
    recovery_ms: int | None
    evidence: tuple[int, ...] = ()


@dataclass(frozen=True)
class Change:
    """The first decision with another effect. None on a side: nothing was, or would have been, decided there."""

    seq: int
    incident: int | None
    recorded: Outcome | None
    instead: Outcome | None
    apart: str
    waits_for: str | None


@dataclass
class WhatIf:
    """One log's answer."""

    where: str
    run_id: str
    decisions: int = 0
    same: int = 0
    told_differently: int = 0
    change: Change | None = None
    unknown_from_seq: int | None = None
    not_judged: int = 0
    lost_steps: int = 0
    policy_changes: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    without: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    unreadable: str | None = None


@dataclass(frozen=True)
class WhatIfs:
    """The answers of all logs, and their sums over what is known."""

    logs: tuple[WhatIf, ...]
    changed: int
    unreadable: int
    lost_steps_delta: int
    standbys_delta: int
    recovery_ms_delta: int


def logs_in(names: Sequence[str]) -> list[str]:
    """The logs named, folders replaced by the logs in them."""
    found: list[str] = []
    for name in names:
        if "://" not in name and Path(name).is_dir():
            inside = sorted(
                str(item) for item in Path(name).iterdir() if item.is_file() and not item.name.startswith(".")
            )
            found += [item for item in inside if not item.endswith(("-wal", "-shm", "-journal"))]
        else:
            found.append(name)
    if not found:
        raise Unreadable(", ".join(names), "holds no logs")
    return found


def whatif_all(
    names: Sequence[str],
    *,
    run_id: str | None = None,
    policy: RecoveryPolicy | None = None,
    without: Sequence[int] = (),
    progress: Progress = silent,
) -> WhatIfs:
    """`whatif` over several logs. With more than one, a log that cannot be read is reported and passed over.

    Args:
        names: LOGs as the user typed them.
        run_id: which run of each.
        policy: decide under this.
        without: leave these recorded facts out.
        progress: told how many logs are done.

    Raises:
        ReplayError: the only log cannot be read.
    """
    found: list[WhatIf] = []
    for done, name in enumerate(names, start=1):
        try:
            found.append(whatif(open_source(name, run_id), policy=policy, without=without))
        except ReplayError as error:
            if len(names) == 1:
                raise
            found.append(WhatIf(name, "?", unreadable=str(error)))
        progress(done)
    changes = [item.change for item in found if item.change is not None]
    return WhatIfs(
        logs=tuple(found),
        changed=len(changes),
        unreadable=sum(item.unreadable is not None for item in found),
        lost_steps_delta=sum(_delta(change, "lost_steps") for change in changes),
        standbys_delta=sum(_delta(change, "standbys_used") for change in changes),
        recovery_ms_delta=sum(_delta(change, "recovery_ms") for change in changes),
    )


def _delta(change: Change, what: str) -> int:
    before, after = (getattr(side, what) if side is not None else 0 for side in (change.recorded, change.instead))
    return after - before if before is not None and after is not None else 0


def whatif(log: Log, *, policy: RecoveryPolicy | None = None, without: Sequence[int] = ()) -> WhatIf:
    """What would have been decided on the facts of `log`.

    Args:
        log: the recorded run.
        policy: in place of the recorded one and of its recorded changes; None keeps them.
        without: seqs of facts that never came.

    Raises:
        NotInLog: a seq of `without` is no fact of the log.
    """
    comparison = _Comparison(log, policy, frozenset(without))
    for record in log.records():
        if not comparison.take(record):
            break
    return comparison.finish()


def recovery_times(log: Log) -> dict[str, int]:
    """Median milliseconds from detected to resumed, by action, of the log's own recoveries."""
    spans: dict[str, list[int]] = {}
    for incident in fold(log.records(), keep_facts=False).incidents:
        total = incident.phases.lengths_ms().get("total")
        if total is not None:
            spans.setdefault(incident.action, []).append(total)
    return {action: round(median(values)) for action, values in spans.items()}


class _Comparison:
    """Two folds side by side: what was recorded, and what would have been decided."""

    def __init__(self, log: Log, policy: RecoveryPolicy | None, without: frozenset[int]) -> None:
        self.log = log
        self.result = WhatIf(log.where, log.run_id, without=tuple(sorted(without)), notes=log.notes)
        self.policy = policy
        self.without = without
        self.times: dict[str, int] = {}
        """Asked of the log only once something changes."""
        self.recorded_state = State()
        """Where the recorded run stood: its generations, incidents and deadlines, without the copies of its state."""
        self.replay = Replay(policy)
        self.recorded: deque[Record] = deque()
        self.instead: deque[Event] = deque()
        self.left_out: set[int] = set()
        self.known = True

    def take(self, record: Record) -> bool:
        """One more record; False when nothing more need be read."""
        event = record.event
        if event.type in DECISIONS:
            self.result.decisions += 1
            if not self.known:
                self.result.not_judged += 1
                return True
            self.recorded.append(record)
        elif not self.known:
            return True
        elif event.type == DeadlinePassed.type:
            self._recorded_deadline(record)
        else:
            self._fact(record)
        if self.known:
            (pass_over if event.type in _COPIES else apply)(self.recorded_state, record)
            self._match(record)
        return True

    def finish(self) -> WhatIf:
        """The answer, after the last record."""
        missing = self.without - self.left_out - {seq for seq in self.without if not self.known}
        if missing:
            raise NotInLog(f"{self.result.where}: --without {min(missing)}: no fact of this log has that seq")
        if self.known and (self.recorded or self.instead):
            self._stop(self.recorded_state.seq + 1)
        return self.result

    def _recorded_deadline(self, record: Record) -> None:
        name = getattr(record.event.data, "deadline", "")
        if record.seq in self.without:
            raise NotInLog(
                f"{self.result.where}: --without {record.seq} is a deadline; leave out the fact that caused it"
            )
        waited = self.replay.next_deadline()
        if waited is not None and waited.id == name and waited.due_ms <= record.recorded_at_ms:
            self.instead += self.replay.take(record)

    def _fact(self, record: Record) -> None:
        if self.policy is not None and isinstance(record.event.data, RunOpened):
            self._note_policy(record.event.data)
        due = self.replay.next_deadline()
        # In step with the recorded run, its own deadlines come from the log, as late as they came.
        if due is not None and due.due_ms <= record.recorded_at_ms and due != next_deadline(self.recorded_state):
            while due is not None and due.due_ms <= record.recorded_at_ms:
                self.instead += self.replay.pass_deadline(due)
                due = self.replay.next_deadline()
        if not self._possible(record):
            self._stop(record.seq)
        elif record.seq in self.without:
            self.left_out.add(record.seq)
        else:
            self.instead += self.replay.take(record)

    def _possible(self, record: Record) -> bool:
        """False when the fact is about a generation that the replay never began: its plan did not fall here."""
        generation = getattr(record.event.data, "generation", None)
        if generation is not None and generation > self.replay.state.last_generation:
            return False
        overdue = (
            self.instead and not self.recorded and record.recorded_at_ms - self.instead[0].at_ms > self._patience_ms()
        )
        return not overdue

    def _patience_ms(self) -> int:
        """How much later the recorded run may have come to the same decision."""
        waits = [
            max(state.policy.settle_ms, state.policy.lease_ms, state.policy.stall_settle_ms)
            for state in (self.recorded_state, self.replay.state)
        ]
        return max(waits) + _SLACK_MS

    def _match(self, record: Record) -> None:
        while self.recorded and self.instead:
            if Effect.of(self.recorded[0].event) != Effect.of(self.instead[0]):
                self._stop(record.seq)
                return
            recorded, instead = self.recorded.popleft().event, self.instead.popleft()
            if _told(recorded) == _told(instead):
                self.result.same += 1
            else:
                self.result.told_differently += 1

    def _stop(self, seq: int) -> None:
        """The first decision with another effect: from `seq` on nothing is known."""
        self.known = False
        self.times = recovery_times(self.log)
        recorded = self.recorded[0] if self.recorded else None
        instead = self.instead[0] if self.instead else None
        waits = None
        if instead is None and (deadline := self.replay.next_deadline()) is not None:
            waits = f"{deadline.id}, {max(0, deadline.due_ms - self.replay.state.now_ms)} ms later"
        event = recorded.event if recorded else instead
        data = event.data if event else None
        self.result.change = Change(
            seq=recorded.seq if recorded else seq,
            incident=data.plan.incident if isinstance(data, PlanCommitted) else None,
            recorded=self._outcome(recorded.event, None) if recorded else None,
            instead=self._outcome(instead, self.replay) if instead else None,
            apart=told_apart(Effect.of(recorded.event), Effect.of(instead)) if recorded and instead else "",
            waits_for=waits,
        )
        self.result.unknown_from_seq = seq
        self.result.not_judged += max(0, len(self.recorded) - 1)

    def _outcome(self, event: Event, replay: Replay | None) -> Outcome:
        data = event.data
        if not isinstance(data, PlanCommitted):
            text = f"run closed: {getattr(data, 'outcome', '')}, {getattr(data, 'reason', '')}"
            return Outcome(text, "close", event.at_ms, None, None, None)
        plan = data.plan
        evidence = replay.evidence(plan) if replay is not None else plan.evidence
        return Outcome(
            plan_headline(plan),
            plan.action,
            event.at_ms,
            plan.checkpoint.lost_steps if plan.checkpoint else None,
            self._standbys(plan.assignments) if plan.action in ("restart", "replace") else 0,
            self.times.get(plan.action) if plan.action in ("restart", "replace") else None,
            evidence,
        )

    def _standbys(self, assignments: Iterable[object]) -> int:
        before = self.recorded_state.layouts
        layout = before[max(number for number in before if number <= self._from_generation())] if before else ()
        old = {item.node for item in layout}
        return len({getattr(item, "node", "") for item in assignments} - old)

    def _from_generation(self) -> int:
        plan = self.recorded[0].event.data.plan if self.recorded else self.instead[0].data.plan  # type: ignore[union-attr]
        return max(plan.from_generation, 0)

    def _note_policy(self, opened: RunOpened) -> None:
        assert self.policy is not None
        old = RecoveryPolicy.from_table(opened.policy, strict=False).table()
        new = self.policy.table()
        self.result.policy_changes = {key: (old[key], new[key]) for key in new if old[key] != new[key]}


def _told(event: Event) -> object:
    """A decision without what a renumbered replay must have differently."""
    data = event.data
    if not isinstance(data, PlanCommitted):
        return data
    plan = data.plan
    rejected = tuple((item.option, item.reason) for item in plan.rejected)
    return Effect.of(event), plan.cause, plan.reason, rejected, plan.checkpoint
