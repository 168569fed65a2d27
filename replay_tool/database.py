"""A database as a source: opened read-only, read to the head it had when the reading began."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from lmr.engine.errors import StateUnreadable
from lmr.engine.record import Record
from lmr.engine.state import State
from lmr.engine.version import ENGINE_VERSION
from lmr.replay_tool.decoding import COLUMNS, open_row
from lmr.replay_tool.errors import LogBroken, Unreadable
from lmr.store import EventLog, LogCorrupt, StoreError, open_log
from lmr.store.archived import starting_state
from lmr.store.reading import refuse_archived
from lmr.store.schema import events, runs, snapshots

PAGE_ROWS = 2_000
_PAGE = (
    select(*(events.c[name] for name in ("seq", "body", "prev_hash", "hash", *COLUMNS)))
    .where(events.c.run_id == bindparam("run"), events.c.seq > bindparam("after"), events.c.seq <= bindparam("last"))
    .order_by(events.c.seq)
    .limit(PAGE_ROWS)
)


@dataclass(frozen=True)
class Reader:
    """An event log that is only read. `shown` is its address without a password."""

    shown: str
    _log: EventLog

    def runs(self) -> list[str]:
        """Ids of the runs in the database."""
        with _named(self.shown):
            return list(self._log.runs())

    def length(self, run_id: str) -> int:
        """Records the run has now."""
        with _named(self.shown):
            return self._log.head(run_id).seq

    def archived(self, run_id: str) -> int:
        """The last record that was moved to an archive; 0 when none was."""
        with _named(self.shown), self._log.database.read() as connection:
            return connection.scalar(select(runs.c.archived_seq).where(runs.c.run_id == run_id)) or 0

    def notes(self, run_id: str) -> tuple[str, ...]:
        """What a reader should know first."""
        through = self.archived(run_id)
        if not through:
            return ()
        return (f"records 1 to {through} were archived: the state sealed with them stands for them",)

    def beginning(self, run_id: str) -> State:
        """The state the records go on from."""
        with _named(self.shown):
            return starting_state(self._log, run_id)

    def snapshots(self, run_id: str) -> dict[int, str]:
        """Digests of the states this engine's version kept, by seq."""
        query = select(snapshots.c.seq, snapshots.c.state_digest).where(
            snapshots.c.run_id == run_id, snapshots.c.engine == ENGINE_VERSION
        )
        with _named(self.shown), self._log.database.read() as connection:
            return {row.seq: row.state_digest for row in connection.execute(query)}

    def records(self, run_id: str, after: int) -> Iterator[Record]:
        """Records after `after` up to the head the run had at the call: a log still being written is read to there.

        Every column is compared with the record's own bytes, and the last record with the head: audit views read the
        columns, so a column that says something else is damage, too.
        """
        with _named(self.shown):
            head = self._log.head(run_id)
            record: Record | None = None
            while after < head.seq:
                for row in self._page(run_id, after, head.seq):
                    if row[0] != after + 1:
                        raise LogCorrupt(after + 1, "the record is missing")
                    record = open_row(row)
                    yield record
                    after += 1
            if record is not None and record.hash != head.hash:
                raise LogCorrupt(record.seq, "the head of the run names another record")

    def _page(self, run_id: str, after: int, last: int) -> Sequence[tuple[Any, ...]]:
        database = self._log.database
        with database.read() as connection:
            rows = database.raw_rows(connection, _PAGE, {"run": run_id, "after": after, "last": last})
            if not rows or rows[0][0] != after + 1:
                refuse_archived(connection, run_id, after)
        if not rows:
            raise LogCorrupt(after + 1, "the record is missing")
        return rows


class _named:  # noqa: N801 - a context manager used like a function
    """Turns what the database says into one clause that names the log."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LogCorrupt):
            raise LogBroken(self.shown, error.seq, error.what) from error
        if isinstance(error, StateUnreadable):
            raise Unreadable(self.shown, f"the state sealed with the archive: {error}") from error
        if isinstance(error, StoreError | SQLAlchemyError):
            raise Unreadable(self.shown, clause(error, self.shown)) from error


def clause(error: BaseException, where: str) -> str:
    """The first line of a database error, without SQLAlchemy's background link, and without `where` in front."""
    text = str(getattr(error, "orig", None) or error).strip()
    first = text.splitlines()[0] if text else type(error).__name__
    return first.removeprefix(f"{where}: ").removeprefix(f"sqlite:///{where}: ")


def shown_address(where: str) -> str:
    """`where` without its password."""
    if "://" not in where:
        return where
    try:
        return make_url(where).render_as_string(hide_password=True)
    except ArgumentError:
        return where.split("://", 1)[0] + "://..."


def open_readonly(where: str) -> Reader:
    """The event log at a SQLAlchemy URL or a SQLite path.

    Raises:
        Unreadable: no such file or server, a foreign database, a schema of another version.
    """
    shown = shown_address(where)
    if "://" not in where and not Path(where).is_file():
        raise Unreadable(where, "no such file")
    try:
        return Reader(shown, open_log(where, create=False, read_only=True))
    except NoSuchModuleError as error:
        raise Unreadable(shown, "no driver for this kind of database") from error
    except ModuleNotFoundError as error:
        raise Unreadable(
            shown, f"the driver {error.name} is not installed (pip install 'lm-resiliency-engine[postgres]')"
        ) from error
    except (StoreError, SQLAlchemyError) as error:
        raise Unreadable(shown, clause(error, shown)) from error
