"""The single writer: facts in, decisions out, in one transaction each batch.

All log I/O of the decider happens on this thread, so a slow disk delays decisions and nothing else. After every fact
the engine is asked whether a decision is due, inside the transaction that wrote the fact.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from lmr.engine import decision_id, settle_decisions
from lmr.engine.deadlines import next_deadline
from lmr.engine.events import DeadlinePassed, Event
from lmr.engine.record import Record
from lmr.engine.reduce import apply
from lmr.engine.state import State
from lmr.store import EpochFenced, EventLog, IdConflict, StoreError

log = structlog.get_logger("lmr.committer")

BATCH_EVENTS = 1_000
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


class Committer(threading.Thread):
    """Appends facts, lets the engine decide, appends its decisions.

    Args:
        event_log: the open log; used by this thread only, from `start()` on.
        run_id: the run.
        epoch: of the lease this decider holds; every transaction checks it.
        writer: who writes, for the log's own record.
        lease_ms: how long the lease is renewed for, each third of it.
        on_commit: called on this thread after each commit that wrote something or acknowledges something.
        on_outage: called with a text when the log cannot be written, and with None when it can again.
        on_fenced: called once when another decider has taken the lease over; the thread ends.
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
    ) -> None:
        super().__init__(name="lmr-committer", daemon=True)
        self._log = event_log
        self._run_id = run_id
        self._epoch = epoch
        self._writer = writer
        self._lease_ms = lease_ms
        self._on_commit = on_commit
        self._on_outage = on_outage
        self._on_fenced = on_fenced
        self._queue: queue.SimpleQueue[Fact | None] = queue.SimpleQueue()
        self._state = State()
        self._stale = False
        self._renewed = time.monotonic()

    def load(self) -> Iterator[Record]:
        """Fold what the log holds, yielding each record; call before `start()`.

        Raises:
            StoreError: the log cannot be read.
        """
        self._state = State()
        for record in self._log.read(self._run_id):
            apply(self._state, record)
            yield record
        self._stale = False

    def submit(self, fact: Fact) -> None:
        """Hand over one fact; never blocks."""
        self._queue.put(fact)

    def stop(self) -> None:
        """End the thread after what was submitted so far."""
        self._queue.put(None)
        self.join(timeout=10)

    def run(self) -> None:
        """The writer's loop."""
        pending: list[Fact] = []
        delay = 0.0
        while True:
            stopping = self._collect(pending, delay)
            try:
                done = self._commit(pending)
            except EpochFenced as fenced:
                log.error("lease_lost", why=str(fenced))
                self._on_fenced(str(fenced))
                return
            except StoreError as error:
                self._stale = True
                if not delay:
                    log.error("event_log_unavailable", why=str(error), facts_waiting=len(pending))
                    self._on_outage(str(error))
                delay = min(max(delay * 2, RETRY_FIRST_S), RETRY_MOST_S)
                if stopping:
                    return
                continue
            if delay:
                log.info("event_log_available_again", facts_written=len(done.facts))
                self._on_outage(None)
            delay = 0.0
            pending.clear()
            if done.facts or done.records:
                self._on_commit(done)
            if stopping:
                return

    def _collect(self, pending: list[Fact], delay: float) -> bool:
        """Wait for facts or the next deadline; true when the thread should end."""
        until = time.monotonic() + (delay or self._idle_s())
        while len(pending) < BATCH_EVENTS:
            wait = until - time.monotonic()
            try:
                fact = (
                    self._queue.get(timeout=wait) if wait > 0 and (delay or not pending) else self._queue.get_nowait()
                )
            except queue.Empty:
                return False
            if fact is None:
                return True
            pending.append(fact)
        return False

    def _idle_s(self) -> float:
        deadline = None if self._stale else next_deadline(self._state)
        if deadline is None:
            return IDLE_S
        return min(max(deadline.due_ms - time.time() * 1000, 1) / 1000, IDLE_S)

    def _commit(self, facts: list[Fact]) -> Committed:
        if self._stale:
            for _ in self.load():
                pass
        done = Committed()
        if time.monotonic() - self._renewed > self._lease_ms / 3000:
            self._log.renew_lease(self._run_id, self._epoch, self._lease_ms)
            self._renewed = time.monotonic()
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
