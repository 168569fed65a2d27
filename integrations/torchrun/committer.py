"""The single writer: facts in, decisions out, in one transaction each batch.

After every fact the engine is asked whether a decision is due, inside the transaction that wrote the fact. All log
I/O of the decider happens here, on a thread of its own (`CommitterThread`): a slow disk delays decisions, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from lmr.engine import decision_id, settle_decisions
from lmr.engine.deadlines import next_deadline
from lmr.engine.events import DeadlinePassed, Event
from lmr.engine.record import Record
from lmr.engine.reduce import apply
from lmr.engine.state import State
from lmr.integrations.torchrun.clock import SYSTEM, Clock
from lmr.store import EpochFenced, EventLog, IdConflict, StoreError

log = structlog.get_logger("lmr.committer")

IDLE_S = 0.2
"""The longest sleep: bounds how late a deadline falls that a clock step brought forward."""
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 2.0


@dataclass(frozen=True)
class Fact:
    """One fact on its way into the log; `origin` comes back with the acknowledgement."""

    event_id: str
    event: Event
    origin: object | None = None


@dataclass
class Committed:
    """What one transaction did."""

    facts: list[Fact] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)


class Committer:
    """Appends facts, lets the engine decide, appends its decisions. Whoever drives it calls `attempt` again and again.

    Args:
        event_log: the open log; used by the driver's thread only, once it has started.
        run_id: the run.
        epoch: of the lease this decider holds; every transaction checks it.
        writer: who writes, for the log's own record.
        lease_ms: how long the lease is renewed for, each third of it.
        on_commit: called after each commit that wrote something or acknowledges something.
        on_outage: called with a text when the log cannot be written, and with None when it can again.
        on_fenced: called once when another decider has taken the lease over.
        clock: this process's clocks.
    """

    def __init__(
        self,
        event_log: EventLog,
        run_id: str,
        epoch: int,
        writer: str,
        lease_ms: int,
        on_commit: Callable[[Committed], None],
        on_outage: Callable[[str | None], None],
        on_fenced: Callable[[str], None],
        clock: Clock = SYSTEM,
    ) -> None:
        self._log = event_log
        self._run_id = run_id
        self._epoch = epoch
        self._writer = writer
        self._lease_ms = lease_ms
        self._on_commit = on_commit
        self._on_outage = on_outage
        self._on_fenced = on_fenced
        self._clock = clock
        self._pending: list[Fact] = []
        self._state = State()
        self._stale = False
        self._told = 0
        self.renewed_at = clock.monotonic()
        """When the lease was renewed last, monotonic seconds."""
        self.retry_s = 0.0
        """How long to let a failing log rest before the next attempt; 0 while it works."""

    def load(self) -> Iterator[Record]:
        """Fold what the log holds, yielding each record.

        Raises:
            StoreError: the log cannot be read.
        """
        for record in self._fold():
            self._told = record.seq
            yield record

    def _fold(self) -> Iterator[Record]:
        self._state = State()
        for record in self._log.read(self._run_id):
            apply(self._state, record)
            yield record
        self._stale = False

    @property
    def waiting(self) -> int:
        """Facts taken and not committed."""
        return len(self._pending)

    def take(self, fact: Fact) -> None:
        """One more fact for the next attempt."""
        self._pending.append(fact)

    def attempt(self) -> bool:
        """Commit what waits and what is due. False when this writer is fenced off and must stop."""
        try:
            done = self._commit(self._pending)
        except EpochFenced as fenced:
            log.error("lease_lost", why=str(fenced))
            self._on_fenced(str(fenced))
            return False
        except StoreError as error:
            self._stale = True
            if not self.retry_s:
                log.error("event_log_unavailable", why=str(error), facts_waiting=len(self._pending))
                self._on_outage(str(error))
            self.retry_s = min(max(self.retry_s * 2, RETRY_FIRST_S), RETRY_MOST_S)
            return True
        if self.retry_s:
            log.info("event_log_available_again", facts_written=len(done.facts))
            self._on_outage(None)
        self.retry_s = 0.0
        self._pending.clear()
        if done.facts or done.records:
            self._told = done.records[-1].seq if done.records else self._told
            self._on_commit(done)
        return True

    def idle_s(self) -> float:
        """How long nothing is to be done when no fact comes."""
        if self.retry_s:
            return self.retry_s
        deadline = None if self._stale else next_deadline(self._state)
        if deadline is None:
            return IDLE_S
        return min(max(deadline.due_ms - self._clock.wall_ms(), 1) / 1000, IDLE_S)

    def _commit(self, facts: list[Fact]) -> Committed:
        done = Committed()
        if self._stale:  # what was committed though its answer was lost is news all the same
            done.records += [record for record in self._fold() if record.seq > self._told]
        if self._clock.monotonic() - self.renewed_at > self._lease_ms / 3000:
            self._log.renew_lease(self._run_id, self._epoch, self._lease_ms)
            self.renewed_at = self._clock.monotonic()
        deadline = next_deadline(self._state)
        if not facts and (deadline is None or deadline.due_ms > self._log.now_ms()):
            return done
        try:
            with self._log.writing(self._run_id, epoch=self._epoch, writer=self._writer) as tx:

                def append(event: Event, event_id: str) -> Record | None:
                    record = tx.append(event, event_id)
                    if record is not None:
                        done.records.append(record)
                    return record

                def decided(event: Event, event_id: str) -> Record:
                    record = append(event, event_id)
                    assert record is not None, f"decision {event_id} was there before it was derived"
                    return record

                def pass_deadlines() -> None:
                    while (due := next_deadline(self._state)) is not None and due.due_ms <= tx.now_ms:
                        event = Event.of(DeadlinePassed(deadline=due.id), at_ms=tx.now_ms, source="decider")
                        apply(self._state, decided(event, decision_id(event)))
                        settle_decisions(self._state, decided)

                for fact in facts:
                    pass_deadlines()
                    try:
                        record = append(fact.event, fact.event_id)
                    except IdConflict as conflict:
                        log.error("fact_refused", event_id=fact.event_id, why=str(conflict))
                        record = None
                    if record is not None:
                        apply(self._state, record)
                        settle_decisions(self._state, decided)
                    done.facts.append(fact)
                pass_deadlines()
        except BaseException:
            self._stale = True
            raise
        return done
