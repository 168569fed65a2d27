"""The event log as a model: the store's contract in memory, on any clock, and as unreliable as it is asked to be.

It passes the contract suite of the real dialects (`test_memory_log.py`), so what the simulation shows holds for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lmr.engine.events import Event
from lmr.engine.record import Record, genesis_hash, seal
from lmr.store import EpochFenced, EventLog, Head, IdConflict, Lease, StoreError
from lmr.store.writing import Writing, _refuse_unstorable, fence, payload_digest, refuse_text


@dataclass
class Run:
    """One run's rows."""

    run_id: str
    records: list[Record] = field(default_factory=list)
    ids: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    epoch: int = 0
    lease_holder: str | None = None
    lease_address: str = ""
    lease_expires_at_ms: int = 0
    holders: list[tuple[int, str]] = field(default_factory=list)

    @property
    def head(self) -> Head:
        """Where the run's log ends."""
        return Head(len(self.records), self.records[-1].hash if self.records else genesis_hash(self.run_id))

    def lease(self) -> Lease | None:
        """The newest lease."""
        if self.lease_holder is None:
            return None
        return Lease(self.epoch, self.lease_holder, self.lease_address, self.lease_expires_at_ms)


class Database:
    """What is kept: it outlives every process.

    Args:
        clock_ms: the database's clock.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.clock_ms = clock_ms
        self.runs: dict[str, Run] = {}
        self.lock = threading.RLock()

    def run(self, run_id: str) -> Run:
        """The run's rows, made when there are none."""
        return self.runs.setdefault(run_id, Run(run_id))


def always_well() -> None:
    """Nothing is wrong with the way to the database."""


class MemoryLog(EventLog):
    """One process's way to the database.

    Args:
        database: shared by all.
        trouble: called before each access and again after each commit; raises what goes wrong there.
    """

    def __init__(self, database: Database, trouble: Callable[[], None] = always_well) -> None:
        self._rows = database
        self._trouble = trouble
        self.dialect = "memory"
        self.url = "memory:"

    @contextmanager
    def _locked(self, run_id: str) -> Iterator[Run]:
        self._trouble()
        with self._rows.lock:
            yield self._rows.run(run_id)

    @contextmanager
    def writing(self, run_id: str, *, epoch: int = 0, writer: str = "") -> Iterator[Writing]:
        refuse_text(run_id, run_id)
        with self._locked(run_id) as run:
            transaction = MemoryWriting(run, self._rows.clock_ms(), epoch, writer)
            yield transaction
            transaction.flush()
            run.records += transaction.added
            run.ids |= {r.event_id: (r.seq, payload_digest(r.event)) for r in transaction.added}
        self._trouble()  # committed, and the answer may still be lost

    def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Iterator[Record]:
        self._trouble()
        run = self._rows.runs.get(run_id)
        found = run.records[after:] if run is not None else []
        yield from found if limit is None else found[:limit]

    def head(self, run_id: str) -> Head:
        self._trouble()
        return self._rows.runs[run_id].head if run_id in self._rows.runs else Head(0, genesis_hash(run_id))

    def runs(self) -> list[str]:
        self._trouble()
        return sorted(self._rows.runs)

    def now_ms(self) -> int:
        self._trouble()
        return self._rows.clock_ms()

    def acquire_lease(self, run_id: str, *, holder: str, address: str, ttl_ms: int) -> Lease | None:
        refuse_text(run_id, holder)
        with self._locked(run_id) as run:
            now = self._rows.clock_ms()
            if run.lease_holder not in (None, holder) and run.lease_expires_at_ms > now:
                return None
            run.epoch += 1
            run.lease_holder, run.lease_address, run.lease_expires_at_ms = holder, address, now + ttl_ms
            run.holders.append((run.epoch, holder))
        self._trouble()
        return run.lease()

    def renew_lease(self, run_id: str, epoch: int, ttl_ms: int) -> Lease:
        with self._locked(run_id) as run:
            self._own(run, epoch)
            run.lease_expires_at_ms = self._rows.clock_ms() + ttl_ms
            lease = run.lease()
            assert lease is not None
            return lease

    def release_lease(self, run_id: str, epoch: int) -> None:
        with self._locked(run_id) as run:
            self._own(run, epoch)
            run.lease_expires_at_ms = self._rows.clock_ms()

    @staticmethod
    def _own(run: Run, epoch: int) -> None:
        if run.epoch != epoch or run.lease_holder is None:
            raise EpochFenced(run.run_id, epoch, "", run.epoch, run.lease_holder)

    def lease(self, run_id: str) -> Lease | None:
        self._trouble()
        run = self._rows.runs.get(run_id)
        return run.lease() if run is not None else None

    def close(self) -> None:
        return


class MemoryWriting(Writing):
    """A transaction: nothing is in the run before it ends well."""

    def __init__(self, run: Run, clock_ms: int, epoch: int, writer: str) -> None:
        fence(run, epoch, writer)
        self.run_id = run.run_id
        self.head = run.head
        self.now_ms = max(clock_ms, run.records[-1].recorded_at_ms if run.records else 0)
        self.added: list[Record] = []
        self._run = run
        self._own_epoch = epoch
        self._ids: dict[str, tuple[int, bytes]] = {}

    def look_up(self, event_ids: Iterable[str]) -> None:
        for event_id in event_ids:
            refuse_text(event_id, event_id)

    def append(self, event: Event, event_id: str) -> Record | None:
        refuse_text(event_id, event_id)
        found = self._ids.get(event_id) or self._run.ids.get(event_id)
        digest = payload_digest(event)
        if found is not None:
            if found[1] != digest:
                raise IdConflict(event_id, found[0])
            return None
        record = seal(
            event,
            run_id=self.run_id,
            seq=self.head.seq + 1,
            event_id=event_id,
            recorded_at_ms=self.now_ms,
            epoch=self._own_epoch,
            prev_hash=self.head.hash,
        )
        _refuse_unstorable(record)
        self.added.append(record)
        self._ids[event_id] = (record.seq, digest)
        self.head = Head(record.seq, record.hash)
        return record

    def read(self, after: int = 0, limit: int | None = None) -> Iterator[Record]:
        found = [*self._run.records, *self.added][after:]
        yield from found if limit is None else found[:limit]

    def flush(self) -> None:
        return


__all__ = ["Database", "MemoryLog", "StoreError"]
