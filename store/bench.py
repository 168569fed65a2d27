"""What the log costs beside the raw driver doing the same statements on the same schema, in the same run.

The raw side gets its rows ready made; `raw_sealed` also encodes and hashes them, so that the difference between the two
is what the audit trail costs and the rest is ours (SQLAlchemy, event models).
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from lmr.engine.events import CheckpointCaptured, Event
from lmr.engine.record import Record, genesis_hash, record_hash, seal
from lmr.store.log import EventLog
from lmr.store.opening import open_log
from lmr.store.verify import verify_chain
from lmr.store.writing import row_of

Result = dict[str, Any]
_SELECT_HEAD = "SELECT head_seq, head_hash, recorded_at_ms, epoch FROM runs WHERE run_id = {p}"
_SELECT_ID = "SELECT event_id, seq, body FROM events WHERE run_id = {p} AND event_id = {p}"
_MOVE = (
    "UPDATE runs SET head_seq = {p}, head_hash = {p}, recorded_at_ms = {p} "
    "WHERE run_id = {p} AND epoch = 0 AND head_seq = {p}"
)
_INSERT = f"INSERT INTO events VALUES ({', '.join(['{p}'] * 12)})"  # noqa: S608 - constants


def run(quick: bool, postgres_url: str | None = None) -> list[Result]:
    """Every measurement, as rows with `bench`, `dialect`, rates per second and `ratio` to the raw driver.

    On a machine with other work the rates are what was left over: the `_cpu_us` columns, processor time of this process
    an event, say what the log costs then.

    Args:
        quick: a tenth of the work.
        postgres_url: an empty place on a server; None leaves PostgreSQL out.
    """
    with tempfile.TemporaryDirectory(prefix="lmr-bench-") as folder:
        results = _one_dialect(f"sqlite:///{folder}/events.db", quick)
        if postgres_url is not None:
            results += _one_dialect(postgres_url, quick)
        return results


def _one_dialect(url: str, quick: bool) -> list[Result]:
    scale = 1 if quick else 10
    with open_log(url) as log:
        results = [appends(log, size, count * scale) for size, count in ((1, 200), (100, 20), (1_000, 4))]
        results.append(verifying(log, 5_000 * scale))
    return [*results, writers(url, 1, 40 * scale), writers(url, 64, 40 * scale)]


def appends(log: EventLog, size: int, count: int) -> Result:
    """`count` transactions of `size` events, ours against the raw driver with and without sealing."""
    run_id = f"bench-{time.time_ns()}"
    batches = list(_batches(size, count))
    cpu = time.process_time()
    ours = _timed(lambda: [log.append(f"{run_id}-ours", batch) for batch in batches])
    cpu = time.process_time() - cpu
    ready = _sealed(f"{run_id}-raw", batches)
    raw_cpu = time.process_time()
    raw = _timed(lambda: _raw_appends(log, f"{run_id}-raw", ready))
    raw_cpu = time.process_time() - raw_cpu
    sealed = raw + _timed(lambda: _sealed(f"{run_id}-sealed", batches))
    events = size * count
    return {
        "bench": f"append, batches of {size}" if size > 1 else "append, one by one",
        "dialect": log.dialect,
        "ours_per_s": round(events / ours),
        "raw_per_s": round(events / raw),
        "raw_sealed_per_s": round(events / sealed),
        "ratio": round(raw / ours, 2),
        "ratio_sealed": round(sealed / ours, 2),
        "ours_cpu_us": round(cpu / events * 1e6, 1),
        "raw_cpu_us": round(raw_cpu / events * 1e6, 1),
    }


def verifying(log: EventLog, count: int) -> Result:
    """`verify_chain` against reading the rows with the raw driver and hashing them."""
    run_id = f"bench-verify-{time.time_ns()}"
    for batch in _batches(1_000, count // 1_000):
        log.append(run_id, batch)
    cpu = time.process_time()
    ours = _timed(lambda: verify_chain(log, run_id))
    cpu = time.process_time() - cpu
    raw_cpu = time.process_time()
    raw = _timed(lambda: _raw_verify(log, run_id))
    raw_cpu = time.process_time() - raw_cpu
    return {
        "bench": "verify",
        "dialect": log.dialect,
        "ours_per_s": round(count / ours),
        "raw_per_s": round(count / raw),
        "ratio": round(raw / ours, 2),
        "ours_cpu_us": round(cpu / count * 1e6, 1),
        "raw_cpu_us": round(raw_cpu / count * 1e6, 1),
    }


def writers(url: str, runs: int, count: int) -> Result:
    """Eight processes that append one event at a time, to `runs` runs in turn."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(8) as pool:
        begun, ended = zip(*pool.starmap(_write, [(url, number, runs, count) for number in range(8)]), strict=True)
    return {
        "bench": f"8 writers, {runs} run{'s' if runs > 1 else ''}",
        "dialect": "sqlite" if url.startswith("sqlite") else "postgresql",
        "ours_per_s": round(8 * count / (max(ended) - min(begun))),
    }


def table(results: list[Result]) -> str:
    """The results as a Markdown table."""
    rates = ("ours_per_s", "raw_per_s", "raw_sealed_per_s", "ratio", "ratio_sealed")
    columns = ("bench", "dialect", *rates, "ours_cpu_us", "raw_cpu_us")
    lines = [columns, ("---",) * len(columns)]
    lines += [tuple(str(result.get(column, "")) for column in columns) for result in results]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _write(url: str, number: int, runs: int, count: int) -> tuple[float, float]:
    with open_log(url) as log:
        stamp = time.time_ns()
        begun = time.time()
        for k in range(count):
            log.append(f"bench-{(number + 8 * k) % runs}", [(f"{number}/{stamp}/{k}", _event(k))])
        return begun, time.time()


def _event(step: int) -> Event:
    data = CheckpointCaptured(generation=0, step=step, slot=0, node="node-1", digest="ab" * 32, bytes=7_000_000_000)
    return Event.of(data, at_ms=1_767_225_600_000 + step, source="node-1")


def _batches(size: int, count: int) -> Iterator[list[tuple[str, Event]]]:
    for number in range(count):
        yield [(f"node-1/life/{number}-{k}", _event(k)) for k in range(size)]


def _sealed(run_id: str, batches: list[list[tuple[str, Event]]]) -> list[list[Record]]:
    previous, seq, sealed = genesis_hash(run_id), 0, []
    for batch in batches:
        records = []
        for event_id, event in batch:
            seq += 1
            record = seal(
                event, run_id=run_id, seq=seq, event_id=event_id, recorded_at_ms=1, epoch=0, prev_hash=previous
            )
            previous = record.hash
            records.append(record)
        sealed.append(records)
    return sealed


def _raw_appends(log: EventLog, run_id: str, batches: list[list[Record]]) -> None:
    sqlite = log.dialect == "sqlite"
    mark = "?" if sqlite else "%s"
    head, known, insert, move = (text.format(p=mark) for text in (_SELECT_HEAD, _SELECT_ID, _INSERT, _MOVE))
    connection = log.database.engine.raw_connection()
    try:
        cursor: Any = connection.cursor()
        values = (run_id, 0, genesis_hash(run_id), 0, 0)
        columns = "run_id, head_seq, head_hash, recorded_at_ms, epoch"
        cursor.execute(f"INSERT INTO runs ({columns}) VALUES ({', '.join([mark] * 5)})", values)  # noqa: S608
        connection.commit()
        for batch in batches:
            if sqlite:
                cursor.execute("BEGIN IMMEDIATE")
            cursor.execute(head + ("" if sqlite else " FOR UPDATE"), (run_id,))
            old = cursor.fetchone()[0]
            for record in batch:
                cursor.execute(known, (run_id, record.event_id))
                cursor.fetchall()
            cursor.executemany(insert, [row_of(record) for record in batch])
            cursor.execute(move, (batch[-1].seq, batch[-1].hash, 1, run_id, old))
            if sqlite:
                cursor.execute("COMMIT")
            else:
                connection.commit()
    finally:
        connection.close()


def _raw_verify(log: EventLog, run_id: str) -> None:
    mark = "?" if log.dialect == "sqlite" else "%s"
    connection = log.database.engine.raw_connection()
    try:
        cursor: Any = connection.cursor()
        query = f"SELECT body, prev_hash, hash FROM events WHERE run_id = {mark} ORDER BY seq"  # noqa: S608
        cursor.execute(query, (run_id,))
        for body, prev_hash, hash_ in cursor:
            assert record_hash(prev_hash, bytes(body)) == hash_
    finally:
        connection.close()


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    import sys

    print(table(run("--quick" in sys.argv, next((a for a in sys.argv[1:] if "://" in a), None))))
