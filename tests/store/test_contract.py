"""What an event log is, on every dialect."""

import itertools
import threading
import time

import pytest
from sqlalchemy import text
from store_samples import batch, captured, joined

from lmr.engine.record import genesis_hash, open_record, record_hash
from lmr.store import (
    EpochFenced,
    EventLog,
    EventRefused,
    HeadMoved,
    IdConflict,
    LogReadOnly,
    open_log,
)
from lmr.store.writing import MAX_EVENT_BYTES


def test_seq_is_dense_from_one_and_the_chain_begins_at_genesis(log: EventLog) -> None:
    added = log.append("r", batch(3))
    assert [record.seq for record in added] == [1, 2, 3]
    assert added[0].prev_hash == genesis_hash("r")
    for before, after in itertools.pairwise(added):
        assert after.prev_hash == before.hash
        assert after.hash == record_hash(before.hash, after.body)


def test_what_is_read_is_what_was_appended(log: EventLog) -> None:
    added = log.append("r", batch(5))
    assert list(log.read("r")) == added
    assert list(log.read("r", after=3)) == added[3:]
    assert list(log.read("r", after=1, limit=2)) == added[1:3]
    assert list(log.read("r", limit=0)) == []


def test_reading_crosses_pages(log: EventLog) -> None:
    log.append("r", batch(2_500))
    assert [record.seq for record in log.read("r")] == list(range(1, 2_501))
    assert sum(1 for _ in log.read("r", limit=1_700)) == 1_700


def test_runs_have_their_own_seq_and_chain(log: EventLog) -> None:
    first = log.append("a", batch(2))
    other = log.append("b", batch(2))
    assert [record.seq for record in other] == [1, 2]
    assert first[0].hash != other[0].hash
    assert log.runs() == ["a", "b"]


def test_a_run_without_records_has_the_genesis_head(log: EventLog) -> None:
    assert (log.head("r").seq, log.head("r").hash) == (0, genesis_hash("r"))
    assert list(log.read("r")) == []


def test_the_head_is_the_last_record(log: EventLog) -> None:
    added = log.append("r", batch(4))
    assert (log.head("r").seq, log.head("r").hash) == (4, added[-1].hash)


def test_the_stored_bytes_are_the_hashed_bytes(log: EventLog) -> None:
    added = log.append("r", [("x", joined("nœud-1 \u0001 𝒳"))])[0]
    stored = next(log.read("r"))
    assert stored.body == added.body
    assert record_hash(stored.prev_hash, stored.body) == stored.hash
    assert open_record(stored.body, stored.prev_hash, stored.hash) == stored


class TestIds:
    """An event id names one event for ever."""

    def test_the_same_event_again_adds_nothing(self, log: EventLog) -> None:
        log.append("r", batch(3))
        assert log.append("r", batch(3)) == []
        assert log.head("r").seq == 3

    def test_a_batch_that_overlaps_adds_what_is_new(self, log: EventLog) -> None:
        log.append("r", batch(3))
        assert [record.event_id for record in log.append("r", batch(5))] == ["node-1/life/4", "node-1/life/5"]

    def test_the_same_id_twice_in_one_batch_is_one_event(self, log: EventLog) -> None:
        assert len(log.append("r", [("x", captured(1)), ("x", captured(1))])) == 1

    def test_the_same_id_with_another_payload_is_an_error_and_changes_nothing(self, log: EventLog) -> None:
        log.append("r", [("x", captured(1))])
        with pytest.raises(IdConflict) as caught:
            log.append("r", [("y", captured(2)), ("x", captured(3))])
        assert (caught.value.event_id, caught.value.seq) == ("x", 1)
        assert log.head("r").seq == 1

    def test_another_payload_within_one_batch_is_an_error(self, log: EventLog) -> None:
        with pytest.raises(IdConflict):
            log.append("r", [("x", captured(1)), ("x", captured(2))])
        assert log.head("r").seq == 0

    def test_the_observers_time_is_part_of_the_payload(self, log: EventLog) -> None:
        first = captured(1)
        log.append("r", [("x", first)])
        later = type(first)(first.type, first.at_ms + 1, first.source, first.data)
        with pytest.raises(IdConflict):
            log.append("r", [("x", later)])

    def test_ids_belong_to_a_run(self, log: EventLog) -> None:
        log.append("a", [("x", captured(1))])
        assert len(log.append("b", [("x", captured(2))])) == 1


class TestWriting:
    """The transaction that reads the head, decides and appends."""

    def test_it_sees_its_own_records(self, log: EventLog) -> None:
        log.append("r", batch(2))
        with log.writing("r") as tx:
            assert tx.head.seq == 2
            assert tx.append(captured(3), "x") is not None
            assert tx.head.seq == 3
            assert [record.seq for record in tx.read(1)] == [2, 3]
            assert tx.append(captured(4), "y") is not None
            assert tx.append(captured(4), "y") is None
        assert [record.event_id for record in log.read("r", 2)] == ["x", "y"]

    def test_an_exception_undoes_it(self, log: EventLog) -> None:
        log.append("r", batch(1))

        def fail() -> None:
            with log.writing("r") as tx:
                tx.append(captured(2), "x")
                list(tx.read())  # the row was even inserted
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert log.head("r").seq == 1
        assert len(list(log.read("r"))) == 1
        assert len(log.append("r", [("x", captured(9))])) == 1

    def test_a_second_writer_waits_for_the_first(self, log: EventLog, url: str) -> None:
        order: list[str] = []
        with open_log(url) as other:
            with log.writing("r") as tx:
                tx.append(captured(1), "first")
                thread = threading.Thread(
                    target=lambda: order.extend(
                        record.event_id for record in other.append("r", [("second", captured(2))])
                    )
                )
                thread.start()
                time.sleep(0.2)
                assert order == []
            thread.join(10)
        assert order == ["second"]
        assert [record.event_id for record in log.read("r")] == ["first", "second"]

    def test_recorded_time_is_the_databases_and_never_goes_back(self, log: EventLog) -> None:
        before = log.now_ms()
        stamps = [log.append("r", [(f"x{i}", captured(i))])[0].recorded_at_ms for i in range(5)]
        assert stamps == sorted(stamps)
        assert before <= stamps[0] <= stamps[-1] <= log.now_ms()
        assert abs(log.now_ms() - time.time() * 1000) < 60_000

    def test_recorded_time_holds_still_when_the_clock_steps_back(self, log: EventLog) -> None:
        log.append("r", batch(1))
        future = log.now_ms() + 3_600_000
        with log.database.write() as connection:
            connection.execute(text(f"UPDATE runs SET recorded_at_ms = {future}"))
        assert log.append("r", [("x", captured(7))])[0].recorded_at_ms == future

    def test_expected_head_is_compare_and_swap(self, log: EventLog) -> None:
        log.append("r", batch(2), expected_head=0)
        with pytest.raises(HeadMoved) as caught:
            log.append("r", [("x", captured(9))], expected_head=1)
        assert (caught.value.expected, caught.value.found) == (1, 2)
        assert log.head("r").seq == 2
        log.append("r", [("x", captured(9))], expected_head=2)


class TestLease:
    """One writer, by the database's clock; its epoch fences all earlier ones."""

    def test_one_holder_at_a_time(self, log: EventLog) -> None:
        lease = log.acquire_lease("r", holder="a/1", address="h:1", ttl_ms=60_000)
        assert lease is not None
        assert (lease.epoch, lease.holder, lease.address) == (1, "a/1", "h:1")
        assert log.acquire_lease("r", holder="b/1", address="h:2", ttl_ms=60_000) is None
        assert log.lease("r") == lease

    def test_a_lapsed_lease_is_taken_over_and_the_old_writer_is_fenced(self, log: EventLog) -> None:
        log.acquire_lease("r", holder="a/1", address="h:1", ttl_ms=1)
        log.append("r", batch(1), epoch=1, writer="a/1")
        time.sleep(0.01)
        taken = log.acquire_lease("r", holder="b/1", address="h:2", ttl_ms=60_000)
        assert taken is not None
        assert taken.epoch == 2
        with pytest.raises(EpochFenced) as caught:
            log.append("r", batch(2), epoch=1, writer="a/1")
        assert (caught.value.epoch, caught.value.current) == (1, 2)
        with pytest.raises(EpochFenced):
            log.renew_lease("r", 1, 60_000)
        assert log.append("r", batch(2), epoch=2, writer="b/1")[0].epoch == 2

    def test_a_lapsed_lease_nobody_took_still_writes_and_renews(self, log: EventLog) -> None:
        log.acquire_lease("r", holder="a/1", address="h:1", ttl_ms=1)
        time.sleep(0.01)
        log.append("r", batch(1), epoch=1, writer="a/1")
        assert log.renew_lease("r", 1, 60_000).expires_at_ms > log.now_ms()
        assert log.acquire_lease("r", holder="b/1", address="h:2", ttl_ms=60_000) is None

    def test_a_released_lease_is_free_at_once(self, log: EventLog) -> None:
        log.acquire_lease("r", holder="a/1", address="h:1", ttl_ms=60_000)
        log.release_lease("r", 1)
        taken = log.acquire_lease("r", holder="b/1", address="h:2", ttl_ms=60_000)
        assert taken is not None
        assert taken.epoch == 2

    def test_a_holder_that_takes_its_lease_anew_fences_its_own_past(self, log: EventLog) -> None:
        log.acquire_lease("r", holder="a/1", address="h:1", ttl_ms=60_000)
        again = log.acquire_lease("r", holder="a/1", address="h:9", ttl_ms=60_000)
        assert again is not None
        assert (again.epoch, again.address) == (2, "h:9")
        with pytest.raises(EpochFenced):
            log.append("r", batch(1), epoch=1, writer="a/1")

    @pytest.mark.parametrize(("epoch", "writer"), [(0, ""), (0, "a/1"), (1, ""), (1, "b/1"), (2, "a/1")])
    def test_epoch_and_writer_must_both_be_right(self, log: EventLog, epoch: int, writer: str) -> None:
        log.acquire_lease("r", holder="a/1", address="h:1", ttl_ms=60_000)
        with pytest.raises(EpochFenced):
            log.append("r", batch(1), epoch=epoch, writer=writer)
        assert log.head("r").seq == 0

    def test_the_head_moves_only_under_the_epoch_that_still_holds(self, log: EventLog) -> None:
        """The epoch is in the statement that moves the head: a fence that slipped past the first look still holds."""
        log.acquire_lease("r", holder="a/1", address="h:1", ttl_ms=60_000)

        def write_while_another_takes_over() -> None:
            with log.writing("r", epoch=1, writer="a/1") as tx:
                tx.append(captured(1), "x")
                tx._connection.execute(text("UPDATE runs SET epoch = 2, lease_holder = 'b/1'"))

        with pytest.raises(EpochFenced):
            write_while_another_takes_over()
        assert log.head("r").seq == 0

    def test_every_holder_is_on_record(self, log: EventLog) -> None:
        for holder in ("a/1", "b/1"):
            log.acquire_lease("r", holder=holder, address="h", ttl_ms=1)
            time.sleep(0.01)
        with log.database.read() as connection:
            rows = connection.execute(text("SELECT epoch, holder FROM epochs ORDER BY epoch")).all()
        assert [tuple(row) for row in rows] == [(1, "a/1"), (2, "b/1")]


class TestLimits:
    """What no database could keep is refused on all of them."""

    def test_an_event_above_the_limit_is_refused_and_the_batch_with_it(self, log: EventLog) -> None:
        with pytest.raises(EventRefused, match="limit"):
            log.append("r", [("ok", captured(1)), ("big", joined("n", address="x" * MAX_EVENT_BYTES))])
        assert log.head("r").seq == 0

    @pytest.mark.parametrize("event_id", ["", "a\0b"])
    def test_an_id_that_is_empty_or_holds_a_nul_is_refused(self, log: EventLog, event_id: str) -> None:
        with pytest.raises(EventRefused):
            log.append("r", [(event_id, captured(1))])

    def test_a_nul_inside_the_payload_is_kept(self, log: EventLog) -> None:
        added = log.append("r", [("x", joined("n", address="a\0b"))])
        assert list(log.read("r")) == added

    def test_a_log_opened_for_reading_refuses_writes(self, log: EventLog, url: str) -> None:
        log.append("r", batch(1))
        with open_log(url, read_only=True) as reader:
            assert len(list(reader.read("r"))) == 1
            with pytest.raises(LogReadOnly):
                reader.append("r", batch(2))
            with pytest.raises(LogReadOnly):
                reader.acquire_lease("r", holder="a", address="h", ttl_ms=1)


class TestFollow:
    """A follower sees every record once, in order."""

    def test_it_yields_what_is_there_and_then_what_comes(self, log: EventLog, url: str) -> None:
        log.append("r", batch(2))
        seen: list[int] = []
        done = threading.Event()

        def read() -> None:
            with open_log(url, read_only=True) as reader:
                seen.extend(record.seq for record in reader.follow("r", poll_ms=50, stop=done.is_set))

        thread = threading.Thread(target=read)
        thread.start()
        for number in range(3, 8):
            log.append("r", [(f"x{number}", captured(number))])
            time.sleep(0.02)
        deadline = time.monotonic() + 10
        while len(seen) < 7 and time.monotonic() < deadline:
            time.sleep(0.01)
        done.set()
        thread.join(10)
        assert seen == list(range(1, 8))

    def test_eight_writers_and_a_follower_never_disagree(self, log: EventLog, url: str) -> None:
        """With a bare sequence a reader passes over rows that commit late; behind the head row there are none."""
        seen: list[int] = []
        done = threading.Event()

        def read() -> None:
            seen.extend(record.seq for record in log.follow("r", poll_ms=1, stop=done.is_set))

        def write(name: str) -> None:
            for number in range(25):
                log.append("r", batch(2, first=1 + 2 * number, node=name))

        follower = threading.Thread(target=read)
        follower.start()
        writers = [threading.Thread(target=write, args=(f"node-{k}",)) for k in range(8)]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join(60)
        deadline = time.monotonic() + 20
        while len(seen) < 400 and time.monotonic() < deadline:
            time.sleep(0.01)
        done.set()
        follower.join(10)
        assert seen == list(range(1, 401))
