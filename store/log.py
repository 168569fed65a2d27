"""`EventLog`: what everybody else uses of the store."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sqlalchemy import select
from typing_extensions import Self

from lmr.engine.events import Event
from lmr.engine.record import Record, genesis_hash
from lmr.store import leases
from lmr.store.dialect import Dialect
from lmr.store.errors import ConnectionLost, HeadMoved
from lmr.store.following import follow
from lmr.store.head import Head, Lease
from lmr.store.reading import PAGE_ROWS, open_page, page_after, refuse_archived
from lmr.store.restoring import restore_records
from lmr.store.schema import runs
from lmr.store.writing import Writing


class EventLog:
    """An open event log of any number of runs. Made by `open_log`; safe to share between threads.

    Attributes:
        dialect: `sqlite` or `postgresql`.
        url: where it is, without a password.
    """

    def __init__(self, database: Dialect) -> None:
        self.database = database
        self.dialect = database.name
        self.url = database.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @contextmanager
    def writing(self, run_id: str, *, epoch: int = 0, writer: str = "") -> Iterator[Writing]:
        """One transaction with the run's head locked: committed when the block ends, undone by an exception.

        Args:
            run_id: the run; its first transaction makes it.
            epoch: the writer's epoch (0: nobody ever leased the run).
            writer: the holder of the lease, as given to `acquire_lease`; checked together with the epoch.

        Raises:
            EpochFenced: another writer holds the run now.
            LogUnavailable: the database is not there; nothing was written, or the commit's answer was lost.
        """
        with self.database.write() as connection:
            transaction = Writing(self.database, connection, run_id, epoch=epoch, writer=writer)
            yield transaction
            transaction.flush()

    def append(
        self,
        run_id: str,
        events: Iterable[tuple[str, Event]],
        *,
        epoch: int = 0,
        writer: str = "",
        expected_head: int | None = None,
    ) -> list[Record]:
        """Append (event_id, event) pairs in one transaction; all of them are durable afterwards, or none is.

        Args:
            run_id: the run.
            events: what to append; ids the log already has are left out.
            epoch: see `writing`.
            writer: see `writing`.
            expected_head: seq the head must be at. When None, a lost connection is tried once more.

        Returns:
            The records added now.

        Raises:
            HeadMoved: the head is not at `expected_head`.
            IdConflict: an id already names another event.
            EpochFenced, LogUnavailable: see `writing`.
        """
        batch = list(events)
        try:
            return self._append_once(run_id, batch, epoch, writer, expected_head)
        except ConnectionLost:
            if expected_head is not None:
                raise
            # Whether the commit happened is unknown; the ids make a second try safe.
            return self._append_once(run_id, batch, epoch, writer, None)

    def _append_once(
        self, run_id: str, batch: list[tuple[str, Event]], epoch: int, writer: str, expected_head: int | None
    ) -> list[Record]:
        with self.writing(run_id, epoch=epoch, writer=writer) as transaction:
            if expected_head is not None and transaction.head.seq != expected_head:
                raise HeadMoved(run_id, expected_head, transaction.head.seq)
            transaction.look_up(event_id for event_id, _ in batch)
            added = (transaction.append(event, event_id) for event_id, event in batch)
            return [record for record in added if record is not None]

    def restore(self, run_id: str, records: Iterable[Record]) -> Head:
        """Write records that were sealed elsewhere, as they are, into a run that has none yet; in one transaction.

        For logs that come from a bundle, or from facts decided offline. The run goes on under the last record's epoch.

        Raises:
            HeadMoved: the run has records already.
            LogCorrupt: the records are not a dense, chained log of this run from seq 1 on.
        """
        with self.database.write() as connection:
            return restore_records(self.database, connection, run_id, Head(0, genesis_hash(run_id)), records)

    def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Iterator[Record]:
        """The records behind `after` in order, read a page at a time.

        Raises:
            LogCorrupt: a record is missing or does not chain; nothing behind it is read.
            SegmentArchived: the records behind `after` were moved to an archive.
        """
        last_hash = None
        left = limit
        while left is None or left > 0:
            wanted = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
            with self.database.read() as connection:
                rows = page_after(connection, run_id, after, wanted)
                if not rows or rows[0].seq != after + 1:
                    refuse_archived(connection, run_id, after)
            yield from open_page(rows, after, last_hash)
            if len(rows) < wanted:
                return
            after, last_hash = rows[-1].seq, rows[-1].hash
            left = None if left is None else left - len(rows)

    def follow(
        self, run_id: str, after: int = 0, *, poll_ms: int = 500, stop: Callable[[], bool] | None = None
    ) -> Iterator[Record]:
        """The records behind `after`, and then each new one as it comes, until `stop` says so.

        A lost connection is waited out. `poll_ms` bounds how late a record is seen when no hint comes.
        """
        return follow(self, run_id, after, poll_ms=poll_ms, stop=stop)

    def head(self, run_id: str) -> Head:
        """Where the run's log ends; seq 0 and the genesis hash when it has no records."""
        with self.database.read() as connection:
            row = connection.execute(select(runs.c.head_seq, runs.c.head_hash).where(runs.c.run_id == run_id)).first()
        return Head(0, genesis_hash(run_id)) if row is None else Head(row.head_seq, row.head_hash)

    def runs(self) -> list[str]:
        """The runs the log has, by name."""
        with self.database.read() as connection:
            return list(connection.scalars(select(runs.c.run_id).order_by(runs.c.run_id)))

    def now_ms(self) -> int:
        """The database's clock."""
        with self.database.read() as connection:
            return int(connection.execute(select(self.database.clock_ms)).scalar_one())

    def acquire_lease(self, run_id: str, *, holder: str, address: str, ttl_ms: int) -> Lease | None:
        """Become the run's one writer, under a new epoch; None while another's lease has not lapsed."""
        return leases.acquire(self.database, run_id, holder=holder, address=address, ttl_ms=ttl_ms)

    def renew_lease(self, run_id: str, epoch: int, ttl_ms: int) -> Lease:
        """Keep the lease for `ttl_ms` from now.

        Raises:
            EpochFenced: another writer has taken it.
        """
        return leases.renew(self.database, run_id, epoch, ttl_ms)

    def release_lease(self, run_id: str, epoch: int) -> None:
        """Give the lease up, so that the next holder need not wait for it to lapse.

        Raises:
            EpochFenced: another writer has taken it.
        """
        leases.release(self.database, run_id, epoch)

    def lease(self, run_id: str) -> Lease | None:
        """The newest lease of the run, lapsed or not; None when there never was one."""
        with self.database.read() as connection:
            return leases.current(connection, run_id)

    def close(self) -> None:
        """Close every connection."""
        self.database.close()
