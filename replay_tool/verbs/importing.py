"""`import`: bundles and full JSONL into a database; other systems' artefacts into facts."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from lmr.replay_tool.database import shown_address
from lmr.replay_tool.errors import ReplayError, Unreadable, Usage
from lmr.replay_tool.importers.placing import Placed, place
from lmr.replay_tool.importers.reading import read_artefacts
from lmr.replay_tool.importers.sighting import Job
from lmr.replay_tool.jsonl import fact_line
from lmr.replay_tool.sentences import count, listing
from lmr.replay_tool.source import SQLITE_MAGIC, Log, open_source


@dataclass(frozen=True)
class Brought:
    """What an import brought."""

    run_id: str
    records: int
    into: str | None
    output: str | None
    kind: str
    sightings: int = 0
    nodes: tuple[str, ...] = ()
    standby: tuple[str, ...] = ()
    local_world_size: int | None = None
    decisions: int = 0
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Some lines for people."""
        lines = [f"note: {note}" for note in self.notes]
        where = listing([item for item in (self.output, self.into) if item])
        if self.kind == "artefacts":
            shape = (
                f"{count(len(self.nodes), 'node')} of {self.local_world_size} ranks, standby: {listing(self.standby)}"
            )
            lines.append(f"run {self.run_id}: {shape}")
            lines.append(f"{count(self.sightings, 'fact')} found, {count(self.records, 'record')} to {where}")
            lines += [f"{count(self.decisions, 'decision')}: lmr-replay explain {self.into} last"] if self.into else []
        else:
            lines.append(f"run {self.run_id}: {count(self.records, 'record')} from a {self.kind} to {where}")
        return "\n".join(lines)


def is_log(files: list[str], kind: str) -> bool:
    """True when the one file named is a log of ours rather than somebody's artefact."""
    if kind != "auto" or len(files) != 1:
        return False
    try:
        open_source(files[0])
    except Unreadable:
        return _begins_like_a_log(files[0])
    except ReplayError:
        return True  # several runs, say: a log, and the question is which
    return True


def _begins_like_a_log(name: str) -> bool:
    if "://" in name:
        return True
    try:
        with Path(name).open("rb") as file:
            head = file.read(64)
    except OSError:
        return True  # let the reader of logs say what is wrong with it
    return head.startswith((b'{"lmr_bundle":', SQLITE_MAGIC, b'{"at_ms"', b'{"type"'))


def import_log(name: str, into: str, *, run_id: str | None = None) -> Brought:
    """Writes a bundle's or a file's run into a database, as it is. Importing the same again changes nothing.

    Raises:
        ReplayError: it cannot be read, or the database has this run with other records.
    """
    from lmr.replay_tool.bundles import restore_bundle
    from lmr.replay_tool.keeping import keep_records

    log = open_source(name, run_id)
    if log.kind == "bundle":
        run, records = restore_bundle(Path(name), into)
    else:
        run, records = log.run_id, keep_records(log.records(), into).seq
    return Brought(run, records, shown_address(into), None, _kind(log), notes=log.notes)


def _kind(log: Log) -> str:
    return {"database": "database", "records": "JSONL log", "facts": "JSONL file of facts", "bundle": "bundle"}[
        log.kind
    ]


def import_artefacts(
    paths: list[Path],
    *,
    kind: str = "auto",
    run_id: str | None = None,
    nodes: list[str] | None = None,
    standby: list[str] | None = None,
    local_world_size: int | None = None,
    year: int | None = None,
    durable_step: int | None = None,
    output: Path | None = None,
    into: str | None = None,
) -> Brought:
    """Reads artefacts into facts, and writes them as JSONL, as a decided log, or both.

    Args:
        paths: the artefacts, of one job.
        kind: `auto`, or the kind they all have.
        run_id: the run's id.
        nodes: node names in slot order.
        standby: nodes that stood by.
        local_world_size: ranks of a node.
        year: of log lines that carry none; None: this one.
        durable_step: a step the framework had saved.
        output: the JSONL file of facts; `-` is standard output.
        into: the database for facts and decisions.

    Raises:
        Unreadable: a file that no reader recognizes, or that is broken, or nothing was found.
        Usage: the output cannot be written.
    """
    job = Job(tuple(nodes or ()), local_world_size, year or datetime.now(timezone.utc).year)
    placed = place(
        read_artefacts(paths, kind, job), run_id=run_id or "imported", nodes=nodes or [], standby=standby or [],
        local_world_size=local_world_size, durable_step=durable_step,
    )  # fmt: skip
    if not placed.events:
        raise Unreadable(str(paths[0]), "; ".join(placed.notes) or "nothing that is a fact")
    if output is not None:
        _write(output, placed)
    records, decisions = _decide_into(placed, into) if into else (len(placed.events), 0)
    return Brought(
        placed.run_id, records, shown_address(into) if into else None, str(output) if output else None, "artefacts",
        placed.sightings, tuple(placed.nodes), tuple(placed.standby), placed.local_world_size, decisions,
        tuple(placed.notes),
    )  # fmt: skip


def _write(output: Path, placed: Placed) -> None:
    facts = "".join(fact_line(event) for event in placed.events)
    if str(output) == "-":
        sys.stdout.buffer.write(facts.encode("utf-8"))
        return
    try:
        output.write_text(facts, "utf-8")
    except OSError as error:
        raise Usage(f"{output}: cannot be written: {(error.strerror or str(error)).lower()}") from error


def _decide_into(placed: Placed, into: str) -> tuple[int, int]:
    from lmr.engine.events import DECISIONS
    from lmr.engine.offline import run_facts
    from lmr.replay_tool.keeping import keep_records

    records = [record for _, record in run_facts(placed.events)]
    keep_records(records, into)
    return len(records), sum(record.event.type in DECISIONS for record in records)
