"""Writers that are killed, paused, starved of disk: what was acknowledged is there, and nothing is half there."""

import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event
from store_samples import batch

from lmr.store import EpochFenced, EventLog, LogReadOnly, LogUnavailable, StoreError, open_log, postgresql
from lmr.store.verify import verify_chain


def _fork(work: Callable[[], int]) -> int:
    """A child process that does `work` and exits with what it returns."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def _wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _append_and_die(url: str, acknowledged: Path, at: int) -> int:
    """Append two batches; SIGKILL ourselves before statement (or commit) number `at`."""
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    log = open_log(url)
    event.listen(log.database.engine, "before_cursor_execute", step)
    event.listen(log.database.engine, "after_cursor_execute", step)
    event.listen(log.database.engine, "commit", step)
    for number in (2, 4):
        log.append("r", batch(number))
        acknowledged.write_text(str(number))
        step()
    return 0


def test_a_writer_killed_at_any_statement_loses_and_doubles_nothing(url: str, tmp_path: Path) -> None:
    acknowledged = tmp_path / "acknowledged"
    open_log(url).close()
    heads = set()
    for at in range(1, 100):
        acknowledged.write_text("0")
        run = f"r{at}"
        child = _fork(lambda run=run, at=at: _append_and_die_in(url, run, acknowledged, at))  # type: ignore[misc]
        code = _wait(child)
        with open_log(url) as log:
            head = log.head(run).seq
            heads.add(head)
            assert head in (0, 2, 4), "half a batch is there"
            assert head >= int(acknowledged.read_text()), "an acknowledged event is lost"
            assert verify_chain(log, run).fault is None
            assert len(log.append(run, batch(4))) == 4 - head
            assert verify_chain(log, run).events == 4
        if code == 0:
            break
        assert code == -signal.SIGKILL
    else:
        pytest.fail("the writer never came to its end")
    assert at > 15
    assert heads == {0, 2, 4}


def _append_and_die_in(url: str, run: str, acknowledged: Path, at: int) -> int:
    original = EventLog.append

    def append(self: EventLog, _: str, *args: object, **options: object) -> object:
        return original(self, run, *args, **options)  # type: ignore[arg-type]

    EventLog.append = append  # type: ignore[assignment,method-assign]
    return _append_and_die(url, acknowledged, at)


def test_two_writers_racing_ten_thousand_appends(url: str) -> None:
    open_log(url).close()

    def write(name: str) -> int:
        log = open_log(url)
        first = 1
        size = 1
        while first <= 5_000:
            size = min(size % 23 + 1, 5_001 - first)
            log.append("r", batch(size, first=first, node=name))
            first += size
        return 0

    children = [_fork(lambda name=name: write(name)) for name in ("a", "b")]  # type: ignore[misc]
    assert [_wait(child) for child in children] == [0, 0]
    with open_log(url) as log:
        report = verify_chain(log, "r")
        assert (report.fault, report.events, report.head_seq) == (None, 10_000, 10_000)
        ids = [record.event_id for record in log.read("r")]
    for name in ("a", "b"):
        assert [one for one in ids if one.startswith(name)] == [f"{name}/life/{k}" for k in range(1, 5_001)]


def test_a_paused_writer_that_wakes_after_its_epoch_is_fenced(log: EventLog, url: str) -> None:
    log.acquire_lease("r", holder="a", address="h", ttl_ms=1)

    def write() -> int:
        mine = open_log(url)
        mine.append("r", batch(1), epoch=1, writer="a")
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            mine.append("r", batch(2), epoch=1, writer="a")
        except EpochFenced:
            return 7
        return 0

    child = _fork(write)
    os.waitpid(child, os.WUNTRACED)
    assert log.acquire_lease("r", holder="b", address="h", ttl_ms=60_000) is not None
    os.kill(child, signal.SIGCONT)
    assert _wait(child) == 7
    assert log.head("r").seq == 1


def test_a_writer_paused_inside_its_transaction_holds_nobody_up(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends the session, and with it the lock, of a writer that says nothing."""
    monkeypatch.setattr(postgresql, "IDLE_IN_TRANSACTION_MS", 500)
    with open_log(postgres_url) as log:
        log.acquire_lease("r", holder="a", address="h", ttl_ms=1)

    def write() -> int:
        mine = open_log(postgres_url)
        try:
            with mine.writing("r", epoch=1, writer="a") as tx:
                tx.append(batch(1)[0][1], "x")
                os.kill(os.getpid(), signal.SIGSTOP)
        except StoreError:
            return 7
        return 0

    child = _fork(write)
    os.waitpid(child, os.WUNTRACED)
    with open_log(postgres_url) as log:
        begun = time.monotonic()
        assert log.acquire_lease("r", holder="b", address="h", ttl_ms=60_000) is not None
        assert time.monotonic() - begun < 5
        log.append("r", batch(3), epoch=2, writer="b")
        os.kill(child, signal.SIGCONT)
        assert _wait(child) == 7
        assert [record.epoch for record in log.read("r")] == [2, 2, 2]


class TestDisk:
    """SQLite meets a disk that takes no more."""

    def test_a_full_disk_undoes_the_batch_and_room_lets_it_go_on(self, tmp_path: Path) -> None:
        path = tmp_path / "events.db"

        def write() -> int:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            log = open_log(path)
            log.append("r", batch(10))
            size = max(part.stat().st_size for part in tmp_path.iterdir()) + 40_000
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            try:
                log.append("r", batch(3_000))
                return 0
            except LogUnavailable:
                pass
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            if log.head("r").seq != 10 or verify_chain(log, "r").fault is not None:
                return 5
            log.append("r", batch(3_000))
            return 7

        assert _wait(_fork(write)) == 7
        with open_log(path) as log:
            assert verify_chain(log, "r").events == 3_000

    def test_a_read_only_file_is_read_and_not_written(self, tmp_path: Path) -> None:
        """As an ordinary user: root may write anything."""
        import shutil
        import tempfile

        folder = Path(tempfile.mkdtemp(prefix="lmr-ro-"))
        with open_log(folder / "events.db") as log:
            log.append("r", batch(3))
        (folder / "events.db").chmod(0o444)
        folder.chmod(0o555)

        def work() -> int:
            with open_log(tmp_path / "other.db") as log:  # imports what nobody may not read
                log.append("r", batch(1))
                verify_chain(log, "r")
            if os.geteuid() == 0:
                os.setegid(65534)
                os.seteuid(65534)
            with open_log(folder / "events.db", read_only=True) as log:
                if verify_chain(log, "r").events != 3:
                    return 5
            try:
                with open_log(folder / "events.db") as log:
                    log.append("r", batch(4))
            except (LogReadOnly, LogUnavailable):
                return 7
            return 0

        try:
            assert _wait(_fork(work)) == 7
        finally:
            folder.chmod(0o755)
            shutil.rmtree(folder)
