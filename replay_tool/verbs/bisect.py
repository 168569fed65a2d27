"""`bisect`: which facts a decision hangs on.

Two questions, both answered by replaying. *Without what would it have been another?* The smallest set of facts whose
absence changes the decision's effect: every single fact is tried, and when no single one does it, delta debugging
(Zeller's ddmin) shrinks the set of all. *What flipped it?* The first fact after which the engine, hearing nothing
more, decides as it did.

Earlier decisions are kept as they were recorded, with the facts they rest on: the question is about this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmr.engine.events import DECISIONS, DeadlinePassed, Event, NodeJoined, PlanCommitted, RunOpened
from lmr.engine.plan import Plan
from lmr.engine.record import Record
from lmr.replay_tool.counterfactual import Effect, Replay, told_apart
from lmr.replay_tool.errors import NotInLog
from lmr.replay_tool.printing import Progress, silent
from lmr.replay_tool.sentences import plan_headline, sentence
from lmr.replay_tool.source import Log
from lmr.replay_tool.verbs.explain import find_plan


@dataclass(frozen=True)
class Needed:
    """A fact the decision hangs on, and what would have been decided without it (with the others of its set)."""

    seq: int
    at_ms: int
    source: str
    text: str
    instead: str


@dataclass(frozen=True)
class Bisected:
    """The answer. `smallest` is one smallest set; `single` tells that each of its facts alone would do."""

    plan_id: str
    seq: int
    run_id: str
    start_ms: int
    headline: str
    smallest: tuple[Needed, ...]
    single: bool
    complete: bool
    flipped_by: Needed | None
    candidates: int
    replays: int
    notes: tuple[str, ...]


def bisect(log: Log, which: str, *, limit: int = 2_000, progress: Progress = silent) -> Bisected:
    """Finds what the decision of one plan hangs on.

    Args:
        log: where it is recorded.
        which: the plan, as for `explain`.
        limit: replays to spend; when they run out, what was found so far is the answer and `complete` is False.
        progress: told the number of replays.

    Raises:
        NotInLog: no such plan, or it cannot be decided again from its log.
    """
    record, _, start_ms = find_plan(log, which)
    plan = record.event.data.plan  # type: ignore[union-attr]
    before = [item for item in log.records() if item.seq < record.seq]
    trial = _Trial(before, Effect.of(record.event), limit, progress)
    again = trial.decision(frozenset())
    if again is None or Effect.of(again) != trial.wanted:
        raise NotInLog(
            f"{log.where}: this engine decides otherwise at seq {record.seq}; `lmr-replay verify` says where"
        )
    candidates = trial.candidates(plan.evidence)
    smallest, single, complete = trial.smallest(candidates)
    return Bisected(
        plan_id=plan.plan_id,
        seq=record.seq,
        run_id=log.run_id,
        start_ms=start_ms,
        headline=plan_headline(plan),
        smallest=tuple(smallest),
        single=single,
        complete=complete,
        flipped_by=trial.flipped_by(),
        candidates=len(candidates),
        replays=trial.replays,
        notes=log.notes,
    )


class _Trial:
    """Replays of the log up to one decision, with facts left out."""

    def __init__(self, before: list[Record], wanted: Effect, limit: int, progress: Progress) -> None:
        self.wanted = wanted
        self.limit = limit
        self.progress = progress
        self.replays = 0
        last = max((i for i, item in enumerate(before) if item.event.type in DECISIONS), default=-1)
        self.earlier, self.recent = before[: last + 1], before[last + 1 :]
        self.base = Replay()
        self.base.hold_decisions = True
        for item in self.earlier:
            self._fold(self.base, item)
        self.base.hold_decisions = False

    def candidates(self, evidence: Sequence[int]) -> list[int]:
        """Seqs that may be left out, the likeliest first: evidence, then the newest, then the older ones."""
        placed = {item.node for plan in self._plans() for item in plan.assignments}
        stays = {seq for plan in self._plans() for seq in plan.evidence}
        free = [
            item for item in [*self.earlier, *self.recent] if item.seq not in stays and _may_be_left_out(item, placed)
        ]
        cited = set(evidence)
        return [item.seq for item in sorted(free, key=lambda item: (item.seq not in cited, -item.seq))]

    def smallest(self, candidates: list[int]) -> tuple[list[Needed], bool, bool]:
        """One smallest set (all single facts when there are such), whether they are single, whether all was tried."""
        singles: list[Needed] = []
        for seq in candidates:
            if self.replays >= self.limit:
                return singles, True, False
            instead = self.decision(frozenset({seq}))
            if self._differs(instead):
                singles.append(self._needed(seq, instead))
        if singles:
            return sorted(singles, key=lambda item: item.seq), True, True
        found, complete = self._ddmin(candidates)
        instead = self.decision(frozenset(found)) if found else None
        return [self._needed(seq, instead) for seq in sorted(found)], False, complete

    def flipped_by(self) -> Needed | None:
        """The first recent fact after which silence gives the decision that was taken."""
        facts = [item for item in self.recent if not isinstance(item.event.data, DeadlinePassed)]
        flipped, instead = None, None
        for end in range(len(facts), 0, -1):
            if self.replays >= self.limit * 2:
                return None
            without = frozenset(item.seq for item in facts[end - 1 :])
            instead = self.decision(without)
            flipped = facts[end - 1]
            if self._differs(instead):
                break
        return None if flipped is None else self._needed(flipped.seq, instead)

    def decision(self, without: frozenset[int]) -> Event | None:
        """What is decided first when the facts of `without` never came; None when nothing is."""
        self.replays += 1
        self.progress(self.replays)
        if any(item.seq in without for item in self.earlier):
            replay = Replay()
            replay.hold_decisions = True
            for item in self.earlier:
                if item.seq not in without:
                    self._fold(replay, item)
            replay.hold_decisions = False
            taken = replay.settle()
            if taken:
                return taken[0]
        else:
            replay = self.base.copy()
        for item in self.recent:
            if item.seq in without:
                continue
            taken = self._recent(replay, item)
            if taken:
                return taken[0]
        taken = replay.run_out()
        return taken[0] if taken else None

    @staticmethod
    def _recent(replay: Replay, item: Record) -> list[Event]:
        if not isinstance(item.event.data, DeadlinePassed):
            return replay.take(item)
        waited = replay.next_deadline()
        if waited is None or waited.id != item.event.data.deadline or waited.due_ms > item.recorded_at_ms:
            return []
        return replay.take(item)

    @staticmethod
    def _fold(replay: Replay, item: Record) -> None:
        if item.event.type in DECISIONS:
            replay.force(item)
        else:
            replay.take(item)

    def _plans(self) -> list[Plan]:
        return [item.event.data.plan for item in self.earlier if isinstance(item.event.data, PlanCommitted)]

    def _differs(self, instead: Event | None) -> bool:
        return instead is None or Effect.of(instead) != self.wanted

    def _needed(self, seq: int, instead: Event | None) -> Needed:
        item = next(item for item in [*self.recent, *self.earlier] if item.seq == seq)
        return Needed(seq, item.recorded_at_ms, item.event.source, sentence(item.event), self._in_words(instead))

    def _in_words(self, event: Event | None) -> str:
        if event is None:
            return "nothing would have been decided"
        if not isinstance(event.data, PlanCommitted):
            return sentence(event)
        apart = told_apart(self.wanted, Effect.of(event))
        return plan_headline(event.data.plan) + (f" ({apart})" if apart else "")

    def _ddmin(self, seqs: list[int]) -> tuple[list[int], bool]:
        """A 1-minimal set whose absence changes the decision; empty when even the absence of all does not."""
        if not self._differs(self.decision(frozenset(seqs))):
            return [], True
        found, parts = list(seqs), 2
        while len(found) > 1:
            size = -(-len(found) // parts)
            chunks = [found[start : start + size] for start in range(0, len(found), size)]
            smaller = next((one for one in self._halves(chunks) if self._changes(one)), None)
            if self.replays >= self.limit:
                return found, False
            if smaller is not None:
                parts = 2 if len(smaller) <= size else max(2, parts - 1)
                found = smaller
            elif parts >= len(found):
                return found, True
            else:
                parts = min(len(found), parts * 2)
        return found, True

    @staticmethod
    def _halves(chunks: list[list[int]]) -> list[list[int]]:
        complements = [[seq for other in chunks if other is not chunk for seq in other] for chunk in chunks]
        return chunks + (complements if len(chunks) > 2 else [])

    def _changes(self, seqs: list[int]) -> bool:
        return self.replays < self.limit and self._differs(self.decision(frozenset(seqs)))


def _may_be_left_out(record: Record, placed: set[str]) -> bool:
    """Recorded decisions stay, and so does what they need to make sense: the run, and the nodes they name."""
    data = record.event.data
    if record.event.type in DECISIONS or isinstance(data, DeadlinePassed | RunOpened):
        return False
    return not (isinstance(data, NodeJoined) and data.node in placed)
