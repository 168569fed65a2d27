"""`explain PLAN`: why this decision was taken, in plain English, with the records that say so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lmr.engine.events import PlanCommitted
from lmr.engine.plan import Assignment, Plan, Rejected
from lmr.engine.record import Record
from lmr.replay_tool.errors import NotInLog
from lmr.replay_tool.reasons import because
from lmr.replay_tool.rules import blamed, rule, sources_of, state_of
from lmr.replay_tool.sentences import count, listing, plan_headline, sentence
from lmr.replay_tool.source import Log

PLACING = ("start", "restart", "replace")
"""Actions that place nodes into slots."""


@dataclass(frozen=True)
class Cited:
    """A record the plan names as evidence."""

    seq: int
    at_ms: int
    source: str
    text: str


@dataclass(frozen=True)
class NotTaken:
    """An option the plan rejected, the reason code, the reason in words and its evidence."""

    option: str
    reason: str
    text: str
    evidence: tuple[int, ...]


@dataclass(frozen=True)
class Explanation:
    """One plan, told. Every string is a whole sentence unless its name says otherwise."""

    plan_id: str
    seq: int
    at_ms: int
    start_ms: int
    run_id: str
    headline: str
    blamed: str
    rule: str
    facts: tuple[Cited, ...]
    placement: tuple[str, ...]
    state: str
    sources: tuple[str, ...]
    rejected: tuple[NotTaken, ...]
    economics: str | None
    decided_through: int
    policy_digest: str
    engine: str
    notes: tuple[str, ...]
    plan: Plan


def explain(log: Log, which: str) -> Explanation:
    """The story of one plan.

    Args:
        log: where it is recorded.
        which: the beginning of its id, `seq:57`, `incident:3` (its last plan), `generation:1` or `last`.

    Raises:
        NotInLog: no plan, or more than one, is meant.
    """
    record, before, first_ms = find_plan(log, which)
    cited = _cited(log.records(), _wanted(record), record.seq)
    return _told(log, record, before, first_ms, cited)


def explain_all(log: Log, *, limit: int) -> Iterator[Explanation]:
    """The stories of the first `limit` plans, in two passes over the log."""
    plans: list[tuple[Record, Plan | None]] = []
    placed: Plan | None = None
    first_ms = 0
    for record in log.records():
        first_ms = first_ms or record.recorded_at_ms
        if isinstance(record.event.data, PlanCommitted):
            if len(plans) < limit:
                plans.append((record, placed))
            if record.event.data.plan.action in PLACING:
                placed = record.event.data.plan
    wanted = {seq for record, _ in plans for seq in _wanted(record)}
    cited = _cited(log.records(), wanted, plans[-1][0].seq if plans else 0)
    for record, before in plans:
        yield _told(log, record, before, first_ms, cited)


def _wanted(record: Record) -> set[int]:
    plan = _plan(record)
    return {seq for item in plan.rejected for seq in item.evidence} | set(plan.evidence)


def _plan(record: Record) -> Plan:
    assert isinstance(record.event.data, PlanCommitted)
    return record.event.data.plan


def _told(log: Log, record: Record, before: Plan | None, first_ms: int, cited: dict[int, Cited]) -> Explanation:
    plan = _plan(record)
    return Explanation(
        plan_id=plan.plan_id,
        seq=record.seq,
        at_ms=record.recorded_at_ms,
        start_ms=first_ms,
        run_id=record.run_id,
        headline=plan_headline(plan),
        blamed=blamed(plan),
        rule=rule(plan, continues=before is not None and before.incident == plan.incident),
        facts=tuple(cited[seq] for seq in sorted(set(plan.evidence)) if seq in cited),
        placement=tuple(placement(plan, before)),
        state=state_of(plan),
        sources=tuple(sources_of(plan)),
        rejected=tuple(_not_taken(item) for item in plan.rejected),
        economics=_economics(plan),
        decided_through=plan.decided_through,
        policy_digest=plan.policy_digest,
        engine=plan.engine,
        notes=log.notes,
        plan=plan,
    )


def find_plan(log: Log, which: str) -> tuple[Record, Plan | None, int]:
    """The record of the plan meant, the placing plan before it, and the time of the first record.

    Raises:
        NotInLog: no plan, or more than one, is meant.
    """
    found: list[tuple[Record, Plan | None]] = []
    placed: Plan | None = None
    first_ms = 0
    known: list[Plan] = []
    for record in log.records():
        if record.seq == 1:
            first_ms = record.recorded_at_ms
        if not isinstance(record.event.data, PlanCommitted):
            continue
        plan = record.event.data.plan
        known.append(plan)
        if _means(which, plan, record.seq):
            found.append((record, placed))
        if plan.action in PLACING:
            placed = plan
    kind = which.partition(":")[0]
    if found and (len(found) == 1 or kind in ("last", "incident", "generation")):
        return found[-1][0], found[-1][1], first_ms
    if found:
        ids = ", ".join(item[0].event.data.plan.plan_id[:12] for item in found)  # type: ignore[union-attr]
        raise NotInLog(f"{log.where}: {which!r} may mean {ids}; say more of it")
    plans = ", ".join(plan.plan_id[:8] for plan in known[-8:]) or "none"
    raise NotInLog(f"{log.where}: no plan {which!r}; the last plans are {plans}")


def _means(which: str, plan: Plan, seq: int) -> bool:
    kind, _, value = which.partition(":")
    match kind:
        case "last":
            return True
        case "seq":
            return value == str(seq)
        case "incident":
            return value == str(plan.incident) and plan.action != "start"
        case "generation":
            return value == str(plan.to_generation) and plan.action not in ("hold", "halt")
        case _:
            return len(which) >= 4 and plan.plan_id.startswith(which.removeprefix("plan:"))


def _cited(records: Iterable[Record], wanted: set[int], before: int) -> dict[int, Cited]:
    found: dict[int, Cited] = {}
    for record in records:
        if record.seq >= before:
            break
        if record.seq in wanted:
            found[record.seq] = Cited(record.seq, record.recorded_at_ms, record.event.source, sentence(record.event))
    return found


def _not_taken(item: Rejected) -> NotTaken:
    return NotTaken(item.option, item.reason, because(item.reason, item.option), item.evidence)


def placement(plan: Plan, before: Plan | None) -> list[str]:
    """Who runs, who takes over from whom, who stays out, who is still free."""
    lines: list[str] = []
    old = {item.slot: item for item in before.assignments} if before else {}
    if plan.action == "start":
        nodes = [item.node for item in plan.assignments]
        lines.append(f"{listing(nodes[:8])}{' ...' if len(nodes) > 8 else ''} take slots 0 to {len(nodes) - 1}.")
    elif plan.action in ("restart", "replace"):
        lines += _changes(plan, old)
    if plan.quarantined:
        lines.append(f"Out of the group: {listing(plan.quarantined)}.")
    lines.append(f"Standby after this plan: {listing(plan.standby)}.")
    return lines


def _changes(plan: Plan, old: dict[int, Assignment]) -> list[str]:
    lines, kept = [], 0
    for item in plan.assignments:
        was = before.node if (before := old.get(item.slot)) else None
        if was == item.node:
            kept += 1
            continue
        last = item.first_rank + item.local_world_size - 1
        span = f"rank {last}" if item.local_world_size == 1 else f"ranks {item.first_rank}-{last}"
        lines.append(
            f"{item.node} takes slot {item.slot} ({span}) from {was or 'nobody'}{_choice(plan, item.slot, item.node)}."
        )
    if kept:
        lines.append(
            f"{count(kept, 'slot')} {'keeps its node' if kept == 1 else 'keep their nodes'}; no surviving rank moves."
        )
    return lines


def _choice(plan: Plan, slot: int, node: str) -> str:
    sources = plan.checkpoint.sources if plan.checkpoint else ()
    if any(source.slot == slot and source.holder == node for source in sources):
        return ", and already holds the shard to restore"
    others = [item.option for item in plan.rejected if item.option.split()[-1] in plan.standby]
    return f"; preferred to {listing(dict.fromkeys(item.split()[-1] for item in others), 'or')}" if others else ""


def _economics(plan: Plan) -> str | None:
    found = plan.economics
    if found is None:
        return None
    return (
        f"The cost-aware rule decided: {found.gain_ms / 1000:,.0f} s would be gained until the horizon, "
        f"{found.cost_ms / 1000:,.0f} s is what the recovery costs."
    )
