"""`export`: a log as bundle, full or bare JSONL, CSV, or a trace."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from lmr.engine.events import DECISIONS, DeadlinePassed
from lmr.engine.record import Record
from lmr.replay_tool import trace
from lmr.replay_tool.errors import Usage
from lmr.replay_tool.history import fold
from lmr.replay_tool.jsonl import fact_line, record_line
from lmr.replay_tool.printing import Progress, silent
from lmr.replay_tool.sentences import count, sentence
from lmr.replay_tool.source import Log

PROTOBUF_NAMES = (".pftrace", ".perfetto-trace", ".pb")
COLUMNS = (
    "seq", "event_id", "type", "version", "at_ms", "recorded_at_ms", "epoch", "source", "node", "generation", "step",
    "sentence", "data", "hash",
)  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """What was written."""

    output: str
    format: str
    run_id: str
    records: int
    bytes: int
    redacted: bool = False

    @property
    def text(self) -> str:
        """One line for people."""
        redacted = ", redacted" if self.redacted else ""
        size = f"{count(self.records, 'record')}{redacted}, {self.bytes:,} bytes"
        return f"{self.output}: {self.format} of run {self.run_id}, {size}"


def export(
    log: Log,
    output: Path,
    *,
    form: str | None = None,
    redact: bool = False,
    progress: Progress = silent,
) -> Exported:
    """Writes `log` to `output`.

    Args:
        log: what to write.
        output: the file; `-` is standard output.
        form: `bundle`, `jsonl`, `facts`, `csv` or `perfetto`; None: by the file's name, else a bundle.
        redact: bundle only: addresses, hosts and error texts are replaced, the same ones by the same words.
        progress: told the seq now and then.

    Raises:
        Usage: the file cannot be written, or the combination makes no sense.
    """
    form = form or _form_of(output)
    if redact and form != "bundle":
        raise Usage("export: --redact is for bundles")
    if form == "bundle":
        from lmr.replay_tool.bundles import write_bundle

        records = _bundle_to_stdout(log, redact) if str(output) == "-" else write_bundle(log, output, redact=redact)
    elif form == "perfetto":
        records = _trace(log, output)
    else:
        records = _rows(log, output, form, progress)
    size = output.stat().st_size if str(output) != "-" and output.is_file() else 0
    return Exported(str(output), form, log.run_id, records, size, redact)


def _bundle_to_stdout(log: Log, redact: bool) -> int:
    from lmr.replay_tool.bundles import write_bundle

    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "run.lmrb"
        records = write_bundle(log, whole, redact=redact)
        with whole.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
    return records


def _form_of(output: Path) -> str:
    known = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".json": "perfetto"}
    return "perfetto" if output.suffix in PROTOBUF_NAMES else known.get(output.suffix, "bundle")


@contextmanager
def _written(output: Path, mode: str) -> Iterator[IO[Any]]:
    """The output under a name of its own until it is whole, so that a broken export leaves no half file."""
    if str(output) == "-":
        if "b" in mode:
            yield sys.stdout.buffer
            return
        text = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            text.detach()
        return
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    options = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        with part.open(mode, **options) as file:  # type: ignore[call-overload]
            yield file
        part.replace(output)
    except OSError as error:
        raise Usage(f"{output}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    finally:
        part.unlink(missing_ok=True)


def _rows(log: Log, output: Path, form: str, progress: Progress) -> int:
    written = 0
    with _written(output, "w") as file:
        table = csv.writer(file) if form == "csv" else None
        if table is not None:
            table.writerow(COLUMNS)
        for record in log.records():
            if table is not None:
                table.writerow(_row(record))
            elif form == "jsonl":
                file.write(record_line(record))
            elif record.event.type not in DECISIONS and not isinstance(record.event.data, DeadlinePassed):
                file.write(fact_line(record.event))
            else:
                continue
            written += 1
            if not written % 20_000:
                progress(written)
    return written


def _row(record: Record) -> list[object]:
    event = record.event.to_json()
    data = event["data"]
    return [
        record.seq, record.event_id, record.event.type, record.version, record.event.at_ms, record.recorded_at_ms,
        record.epoch, record.event.source, data.get("node", data.get("holder")), data.get("generation"),
        data.get("step"),
        sentence(record.event), json.dumps(data, ensure_ascii=False, separators=(",", ":")), record.hash,
    ]  # fmt: skip


def _trace(log: Log, output: Path) -> int:
    history = fold(log.records())
    binary = output.suffix in PROTOBUF_NAMES
    with _written(output, "wb") as file:
        for piece in trace.as_protobuf(history) if binary else trace.as_json(history):
            file.write(piece if isinstance(piece, bytes) else piece.encode("utf-8"))
    return sum(history.counts.values())
