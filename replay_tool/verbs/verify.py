"""`verify`: is this log what it says, and would today's engine decide the same?

The hash chain says that nobody changed a record. Recomputing every decision from the records before it says that the
decisions follow from the facts. Both are needed: a chain can be re-made by whoever owns the table, decisions cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from lmr.engine import ENGINE_VERSION, decision_id
from lmr.engine.deadlines import next_deadline
from lmr.engine.decide import decide
from lmr.engine.events import DeadlinePassed, Event, PlanCommitted, RunClosed, UnknownData
from lmr.engine.plan import Plan
from lmr.engine.record import Record, genesis_hash, payload_bytes, record_hash
from lmr.engine.reduce import apply
from lmr.engine.state import State
from lmr.engine.state_bytes import state_bytes
from lmr.replay_tool.errors import LogBroken
from lmr.replay_tool.printing import Progress, silent
from lmr.replay_tool.source import Log
from lmr.replay_tool.verbs.anchors import Anchor
from lmr.store.sealing import state_digest

FaultKind = Literal[
    "chain_broken", "body_changed", "seq_gap", "wrong_run",
    "decision_differs", "decision_missed", "decision_not_due", "wrong_event_id",
    "deadline_early", "deadline_unknown",
    "anchor_differs", "tail_cut", "seal_broken", "snapshot_differs",
]  # fmt: skip
_DECISIONS = frozenset({PlanCommitted, RunClosed})
MAX_FAULTS = 50
"""Faults listed; the rest is counted. A log that broke once breaks everywhere after."""


@dataclass(frozen=True)
class Fault:
    """One thing that is not as it must be, at one seq."""

    seq: int
    kind: FaultKind
    text: str
    field: str | None = None
    recorded: Any = None
    recomputed: Any = None
    engine: str | None = None
    policy_digest: str | None = None


@dataclass
class Verification:
    """What `verify` found. `ok` when there is no fault; what is still due at the end is news, not a fault."""

    where: str
    run_id: str
    kind: str
    ok: bool = True
    archived: int = 0
    """Records that were moved to an archive; the state sealed with them stands for them."""
    records: int = 0
    decisions: int = 0
    deadlines: int = 0
    head_hash: str = ""
    engine: str = ENGINE_VERSION
    recorded_engines: dict[str, int] = field(default_factory=dict)
    same_under_other_engine: int = 0
    anchors_checked: int = 0
    faults: list[Fault] = field(default_factory=list)
    faults_not_listed: int = 0
    still_due: list[str] = field(default_factory=list)
    unknown_types: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def blame(self, fault: Fault) -> None:
        """Adds a fault."""
        self.ok = False
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)
        else:
            self.faults_not_listed += 1


def verify(log: Log, *, anchors: Iterable[Anchor] = (), progress: Progress = silent) -> Verification:
    """Checks chain, anchors, decisions and deadlines of `log` in one pass and constant memory.

    Args:
        log: what to check. Bare facts hold no recorded decision: they are decided, and that is said.
        anchors: heads kept outside (restart contexts, checkpoint manifests); they show a cut tail.
        progress: told the seq now and then.
    """
    result = Verification(log.where, log.run_id, log.kind, notes=list(log.notes))
    try:
        state = log.beginning()
    except LogBroken as error:
        result.blame(Fault(error.seq, "seal_broken", f"{error.what}; nothing behind it was read"))
        return result
    result.archived = state.seq
    pass_ = _Pass(result, log.run_id, state, log.snapshots())
    pass_.watch(anchors)
    try:
        for record in log.records(state.seq):
            if not pass_.check(record):
                break
            if not record.seq % 20_000:
                progress(record.seq)
    except LogBroken as error:
        result.blame(Fault(error.seq, "chain_broken", f"{error.what}; nothing behind it was read"))
    pass_.finish()
    return result


class _Pass:
    """One walk over the log: the chain's head, the folded state, and the decision that is due next."""

    def __init__(self, result: Verification, run_id: str, state: State, snapshots: dict[int, str]) -> None:
        self.result = result
        self.run_id = run_id
        self.anchors: dict[int, Anchor] = {}
        self.snapshots = snapshots
        self.state = state
        self.head = state.head_hash or genesis_hash(run_id)
        self.due = decide(state)
        self.missed = False

    def watch(self, anchors: Iterable[Anchor]) -> None:
        """Compares these heads as their records come; the archive's end now, and what lies before it not at all."""
        for anchor in anchors:
            if anchor.seq > self.state.seq:
                self.anchors[anchor.seq] = anchor
            elif anchor.seq == self.state.seq:
                self._compare(anchor, self.head)
            else:
                self.result.notes.append(f"{anchor.where} saw seq {anchor.seq}, which is archived: verify the archive")

    def check(self, record: Record) -> bool:
        """One more record; False when a gap was found, behind which nothing can be folded."""
        result = self.result
        in_order = record.seq == self.state.seq + 1
        if (
            in_order
            and record.prev_hash == self.head
            and record_hash(record.prev_hash, record.body) == record.hash
            and record.run_id == self.run_id
            and not self.anchors
        ):
            self.head = record.hash
        else:
            self._check_chain(record)
        if not in_order:
            return False
        result.records += 1
        kind = type(record.event.data)
        if kind in _DECISIONS:
            self._check_decision(record)
        elif self.due is not None and not self.missed:
            self.missed = True
            self._fault(
                record, "decision_missed",
                f"{_name(self.due)} was due here and not taken before {record.event.type}",
                recomputed=_name(self.due),
            )  # fmt: skip
        if kind is DeadlinePassed:
            self._check_deadline(record)
        elif kind is UnknownData:
            name = record.event.type
            result.unknown_types[name] = result.unknown_types.get(name, 0) + 1
        apply(self.state, record)
        if self.snapshots and (kept := self.snapshots.pop(record.seq, None)) is not None:
            own = state_digest(state_bytes(self.state))
            if own != kept:
                text = "the snapshot kept here is not what the records up to it fold to"
                self._fault(record, "snapshot_differs", text, "state_digest", kept, own)
        self.due = decide(self.state)
        if self.due is None:
            self.missed = False
        return True

    def finish(self) -> None:
        result = self.result
        result.head_hash = self.head
        if self.due is not None:
            result.still_due.append(f"{_name(self.due)} is due after seq {self.state.seq} and not yet recorded")
        deadline = next_deadline(self.state)
        if deadline is not None:
            wait = deadline.due_ms - self.state.now_ms
            when = f"in {wait} ms" if wait > 0 else "now"
            result.still_due.append(f"deadline {deadline.id} is due {when} and not yet recorded")
        for anchor in sorted(self.anchors.values(), key=lambda item: item.seq):
            result.blame(
                Fault(anchor.seq, "tail_cut", f"{anchor.where} saw seq {anchor.seq}; the log ends at {self.state.seq}")
            )

    def _check_chain(self, record: Record) -> None:
        """Looks closely at a record that is not plainly the next one: what is wrong, or what an anchor says of it."""
        expected = self.state.seq + 1
        if record.seq != expected:
            self._fault(
                record,
                "seq_gap",
                f"seq {record.seq} where {expected} was expected; nothing behind it was read",
                recorded=record.seq,
            )
        if record.run_id != self.run_id:
            self._fault(record, "wrong_run", f"belongs to run {record.run_id!r}", "run_id", record.run_id, self.run_id)
        if record.prev_hash != self.head:
            text = "does not continue the record before it"
            self._fault(record, "chain_broken", text, "prev_hash", record.prev_hash, self.head)
        own = record_hash(record.prev_hash, record.body)
        if own != record.hash:
            self._fault(record, "body_changed", "its bytes are not what its hash says", "hash", record.hash, own)
        self.head = record.hash
        anchor = self.anchors.pop(record.seq, None) if self.anchors else None
        if anchor is not None:
            self._compare(anchor, record.hash)

    def _compare(self, anchor: Anchor, hash_: str) -> None:
        self.result.anchors_checked += 1
        if anchor.hash != hash_:
            text = f"{anchor.where} saw another record here"
            self.result.blame(Fault(anchor.seq, "anchor_differs", text, "hash", hash_, anchor.hash))

    def _check_decision(self, record: Record) -> None:
        result, event, due = self.result, record.event, self.due
        result.decisions += 1
        engine = event.data.plan.engine if isinstance(event.data, PlanCommitted) else None
        if engine is not None:
            result.recorded_engines[engine] = result.recorded_engines.get(engine, 0) + 1
        self.missed = False
        if due is None:
            self._fault(record, "decision_not_due", f"{_name(event)} was recorded where no decision was due")
            return
        if payload_bytes(due) != payload_bytes(event):
            if engine is not None and engine != ENGINE_VERSION and _same_but_engine(event, due):
                result.same_under_other_engine += 1
            else:
                self._differs(record, due)
        if record.event_id != decision_id(event):
            text = f"event id is not {decision_id(event)}"
            self._fault(record, "wrong_event_id", text, "event_id", record.event_id, decision_id(event))

    def _differs(self, record: Record, due: Event) -> None:
        at, recorded, recomputed = first_difference(record.event.to_json(), due.to_json())
        plan = record.event.data.plan if isinstance(record.event.data, PlanCommitted) else None
        engine = plan.engine if plan else None
        made_by = (
            f" (recorded by engine {engine}, this is {ENGINE_VERSION})" if engine != ENGINE_VERSION and engine else ""
        )
        self.result.blame(
            Fault(
                record.seq,
                "decision_differs",
                f"{at} is not what the facts before it give{made_by}",
                at,
                recorded,
                recomputed,
                engine,
                plan.policy_digest if plan else None,
            )
        )

    def _check_deadline(self, record: Record) -> None:
        data = record.event.data
        assert isinstance(data, DeadlinePassed)
        self.result.deadlines += 1
        waited = next_deadline(self.state)
        if waited is None or waited.id != data.deadline:
            name = waited.id if waited else "none"
            text = f"deadline {data.deadline} passed, but the state waits for {name}"
            self._fault(record, "deadline_unknown", text, "deadline", data.deadline, name)
        elif record.recorded_at_ms < waited.due_ms:
            text = f"deadline {data.deadline} was recorded {waited.due_ms - record.recorded_at_ms} ms before it was due"
            self._fault(record, "deadline_early", text, "recorded_at_ms", record.recorded_at_ms, waited.due_ms)

    def _fault(
        self,
        record: Record,
        kind: FaultKind,
        text: str,
        at: str | None = None,
        recorded: Any = None,
        recomputed: Any = None,
    ) -> None:
        self.result.blame(Fault(record.seq, kind, text, at, recorded, recomputed))


def _name(event: Event) -> str:
    data = event.data
    if isinstance(data, PlanCommitted):
        return f"plan {data.plan.plan_id[:8]} ({data.plan.action}, {data.plan.reason})"
    return f"{event.type}"


def _same_but_engine(recorded: Event, due: Event) -> bool:
    """True when both plans agree in all but the engine's name and the id that follows from it."""
    if not isinstance(recorded.data, PlanCommitted) or not isinstance(due.data, PlanCommitted):
        return False
    theirs, ours = (event.data.plan.model_dump(mode="json") for event in (recorded, due))  # type: ignore[union-attr]
    ours["engine"] = theirs["engine"]
    ours["plan_id"] = Plan.id_of(ours)
    return bool(theirs == ours) and (recorded.at_ms, recorded.source) == (due.at_ms, due.source)


def first_difference(recorded: Any, recomputed: Any, path: str = "") -> tuple[str, Any, Any]:
    """Path and both values of the first difference in key order; `plan_id` last, since it differs with anything."""
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        keys = sorted({*recorded, *recomputed}, key=lambda key: (key == "plan_id", key))
        for key in keys:
            if recorded.get(key, _ABSENT) != recomputed.get(key, _ABSENT):
                below = f"{path}.{key}" if path else key
                return first_difference(recorded.get(key, _ABSENT), recomputed.get(key, _ABSENT), below)
    if isinstance(recorded, list | tuple) and isinstance(recomputed, list | tuple) and len(recorded) == len(recomputed):
        for index, (left, right) in enumerate(zip(recorded, recomputed, strict=True)):
            if left != right:
                return first_difference(left, right, f"{path}[{index}]")
    left, right = (None if value is _ABSENT else value for value in (recorded, recomputed))
    return path, left, right


_ABSENT = object()
