"""What a LOG may be: a SQLAlchemy URL, a SQLite file, a JSONL file of facts or full records, or a bundle.

Whatever it is, the verbs see one thing: a `Log` whose `records()` can be read again and again, in order, in constant
memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lmr.engine.record import Record
from lmr.engine.state import State
from lmr.replay_tool import jsonl
from lmr.replay_tool.errors import NotInLog, Unreadable, Usage

Kind = Literal["database", "records", "facts", "bundle"]
LOGS = "a SQLAlchemy URL, a SQLite file, a JSONL file or a bundle"
SQLITE_MAGIC = b"SQLite format 3\0"


def _nothing(_after: int) -> Iterator[Record]:
    return iter(())


@dataclass(frozen=True)
class Log:
    """One run's log.

    Attributes:
        where: what the user typed.
        kind: `database`, `records` (full JSONL), `facts` (bare JSONL, decided by this engine) or `bundle`.
        run_id: the run read.
        length: number of records when that is known without reading them.
        address: what opens the log again, a database's password included; `where` is for showing.
        notes: what a reader should know before trusting an answer.
    """

    where: str
    kind: Kind
    run_id: str
    length: int | None = None
    notes: tuple[str, ...] = ()
    address: str = field(repr=False, default="")
    _read: Callable[[int], Iterator[Record]] = field(repr=False, default=_nothing)
    _begin: Callable[[], State] = field(repr=False, default=State)
    _snapshots: Callable[[], dict[int, str]] = field(repr=False, default=dict)

    def beginning(self) -> State:
        """The state that the log's records go on from: empty, or that of the end of what was archived.

        Raises:
            LogBroken: the seal and the state kept with it do not agree.
            Unreadable: the state was kept by a version that lays it out otherwise.
        """
        return self._begin()

    def snapshots(self) -> dict[int, str]:
        """Digests of the states this engine's version kept, by the seq they were kept at."""
        return self._snapshots()

    def records(self, after: int = 0) -> Iterator[Record]:
        """Records with a seq above `after`, in order.

        Raises:
            Unreadable: the log ends or breaks in the middle.
        """
        return self._read(after)


def open_source(where: str, run_id: str | None = None) -> Log:
    """The log that `where` names.

    Args:
        where: a SQLAlchemy URL, or the path of a SQLite file, a JSONL file or a bundle.
        run_id: which run, when there are several.

    Raises:
        Unreadable: no such file, a foreign or newer database, an unreachable server, not a log.
        NotInLog: the run is not there, or several are and none was named.
        Usage: the name is empty, or `-`.
    """
    if where in ("", "-"):
        raise Usage(f"{where!r} names no log: say {LOGS}; a log is read more than once, so not standard input")
    if "://" in where:
        return _from_database(where, run_id)
    path = Path(where)
    head = _first_bytes(path)
    if head.startswith(SQLITE_MAGIC):
        return _from_database(where, run_id)
    from lmr.replay_tool.bundles import is_bundle

    if is_bundle(path):
        return _from_bundle(path, run_id)
    if not head.lstrip().startswith((b"{", b"#")):
        raise Unreadable(where, "neither a SQLite event log, nor JSONL, nor a bundle")
    if jsonl.holds_records(path):
        return _from_records(path, run_id)
    return _from_facts(path, run_id)


def _first_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise Unreadable(str(path), "is a folder; name one log")
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        raise Unreadable(str(path), (error.strerror or str(error)).lower()) from error
    if not head:
        raise Unreadable(str(path), "is empty")
    return head


def _from_database(where: str, run_id: str | None) -> Log:
    from lmr.replay_tool.database import open_readonly

    reader = open_readonly(where)
    run = choose_run(where, reader.runs(), run_id)
    return Log(
        where=reader.shown,
        kind="database",
        run_id=run,
        length=reader.length(run),
        address=where,
        notes=reader.notes(run),
        _read=lambda after: reader.records(run, after),
        _begin=lambda: reader.beginning(run),
        _snapshots=lambda: reader.snapshots(run),
    )


def _from_bundle(path: Path, run_id: str | None) -> Log:
    from lmr.replay_tool.bundles import open_bundle

    found = open_bundle(path)
    run = choose_run(str(path), found.runs, run_id)
    return Log(
        where=str(path),
        kind="bundle",
        run_id=run,
        length=found.length,
        notes=found.notes,
        _read=found.records,
        _begin=found.beginning,
        _snapshots=lambda: dict(found.snapshots),
    )


def _from_records(path: Path, run_id: str | None) -> Log:
    # One pass for the runs would read a 5 GB file twice: the first record names the run, --run picks another.
    first = next(jsonl.read_records(path))
    wanted = run_id or first.run_id

    def read(after: int) -> Iterator[Record]:
        found = False
        for record in jsonl.read_records(path):
            if record.run_id != wanted:
                if run_id is None:
                    raise NotInLog(f"{path}: holds several runs ({first.run_id}, {record.run_id}, ...); say --run ID")
                continue
            found = True
            if record.seq > after:
                yield record
        if not found:
            raise NotInLog(f"{path}: no run {wanted!r}")

    return Log(where=str(path), kind="records", run_id=wanted, _read=read)


def _from_facts(path: Path, run_id: str | None) -> Log:
    from lmr.replay_tool.offline import decided_records, run_of

    facts = jsonl.read_facts(path)
    run = run_of(facts, path)
    if run_id not in (None, run):
        raise NotInLog(f"{path}: no run {run_id!r}; it holds {run}")
    notes = ["facts only: the decisions shown are this engine's, not recorded ones"]
    if facts.left_out:
        notes.append(f"{facts.left_out} decisions or deadlines in the file were left out and made anew")
    notes += [f"{number} events of the unknown type {name!r} were kept" for name, number in facts.unknown_types.items()]

    @functools.cache
    def all_records() -> tuple[Record, ...]:
        return tuple(decided_records(facts))

    def read(after: int) -> Iterator[Record]:
        return iter(all_records()[after:])

    return Log(where=str(path), kind="facts", run_id=run, notes=tuple(notes), _read=read)


def choose_run(where: str, runs: list[str], wanted: str | None) -> str:
    """The run to read.

    Raises:
        NotInLog: it is not there, or none was named and there are several.
    """
    if wanted is not None:
        if wanted in runs:
            return wanted
        raise NotInLog(f"{where}: no run {wanted!r}; it holds {', '.join(sorted(runs)) or 'no run'}")
    if not runs:
        raise Unreadable(where, "the event log is empty")
    if len(runs) > 1:
        raise NotInLog(f"{where}: holds {len(runs)} runs; say --run with one of {', '.join(sorted(runs))}")
    return runs[0]
