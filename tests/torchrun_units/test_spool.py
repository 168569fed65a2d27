"""The spool keeps what nobody has acknowledged: in order, within its bounds, and never silently short of a fact."""

import errno
from typing import Any

import pytest
from structlog.testing import capture_logs

from lmr.integrations.torchrun import spool as spool_module
from lmr.integrations.torchrun.spool import Spool, Spooled


def fact(counter: int, type_: str = "worker_exited", text: str = "") -> Spooled:
    return Spooled(counter, f"node-1/a/{counter}", {"type": type_, "at_ms": counter, "data": {"text": text}})


def counters(facts: list[Spooled]) -> list[int]:
    return [each.counter for each in facts]


def drained(spool: Spool) -> list[int]:
    """Counters in the order a sender would send them, each acknowledged once it was sent."""
    sent: list[int] = []
    while len(spool):
        waiting = spool.in_memory()
        assert waiting, "facts are left, but none can be sent"
        sent.append(waiting[0].counter)
        spool.acknowledge(waiting[0].counter)
    return sent


class TestInMemory:
    def test_what_fits_may_be_sent_at_once_and_waits_for_its_acknowledgement(self) -> None:
        spool = Spool(memory_facts=4)
        assert all(spool.push(fact(counter)) for counter in (1, 2, 3))
        assert counters(spool.in_memory()) == [1, 2, 3]
        assert spool.acknowledge(2) == []
        assert counters(spool.in_memory()) == [3]
        assert len(spool) == 1

    def test_an_old_acknowledgement_takes_nothing_away(self) -> None:
        spool = Spool()
        spool.push(fact(5))
        assert spool.acknowledge(4) == []
        assert len(spool) == 1

    def test_a_retry_sends_the_very_same_values(self) -> None:
        spool = Spool()
        first = fact(1)
        spool.push(first)
        assert spool.in_memory()[0] is first


class TestOnDisk:
    def test_what_does_not_fit_waits_behind_and_is_counted(self) -> None:
        spool = Spool(memory_facts=4)
        assert [spool.push(fact(counter)) for counter in range(1, 8)] == [True] * 4 + [False] * 3
        assert len(spool) == 7
        assert counters(spool.in_memory()) == [1, 2, 3, 4]

    def test_a_new_fact_never_overtakes_one_on_disk(self) -> None:
        spool = Spool(memory_facts=4)
        for counter in range(1, 6):
            spool.push(fact(counter))
        spool.acknowledge(1)  # there is room in memory, but 5 is on disk
        assert spool.push(fact(6)) is False
        assert drained(spool) == [2, 3, 4, 5, 6]

    def test_half_empty_memory_is_filled_from_disk_in_order(self) -> None:
        spool = Spool(memory_facts=4)
        for counter in range(1, 10):
            spool.push(fact(counter))
        assert spool.acknowledge(2) == []  # still half full
        assert counters(spool.acknowledge(3)) == [5, 6, 7]
        assert counters(spool.in_memory()) == [4, 5, 6, 7]
        assert len(spool) == 6

    def test_facts_come_back_from_disk_as_they_went(self) -> None:
        spool = Spool(memory_facts=2)
        spool.push(fact(1))
        spool.push(fact(2))
        said = fact(3, "node_lost", 'line\nbreak, "quotes", \u2028 and 𝒳')
        spool.push(said)
        assert spool.acknowledge(2) == [said]
        assert spool.in_memory() == [said]

    def test_ten_thousand_facts_leave_in_the_order_they_came(self) -> None:
        spool = Spool(memory_facts=64)
        for counter in range(1, 10_001):
            spool.push(fact(counter))
        assert drained(spool) == list(range(1, 10_001))

    def test_facts_that_come_while_the_disk_is_read_stay_behind_it(self) -> None:
        spool = Spool(memory_facts=8)
        sent: list[int] = []
        for counter in range(1, 301):
            spool.push(fact(counter))
            if counter % 3 == 0:
                sent.append(spool.in_memory()[0].counter)
                spool.acknowledge(sent[-1])
        assert sent + drained(spool) == list(range(1, 301))

    def test_an_emptied_spool_begins_anew_with_a_whole_disk(self) -> None:
        spool = Spool(memory_facts=2, disk_bytes=400)
        for beginning in (1, 11, 21):
            for counter in range(beginning, beginning + 5):
                spool.push(fact(counter))
            assert drained(spool) == list(range(beginning, beginning + 5))
        assert spool.dropped == 0

    def test_spilling_is_said_once(self) -> None:
        with capture_logs() as logs:
            spool = Spool(memory_facts=1)
            for counter in range(1, 5):
                spool.push(fact(counter))
        assert [(line["event"], line["facts"]) for line in logs] == [("spool_spills_to_disk", 1)]


class TestFull:
    def test_checkpoint_facts_give_way_and_are_counted(self) -> None:
        spool = Spool(memory_facts=2, disk_bytes=0)
        for counter in range(1, 6):
            spool.push(fact(counter, "checkpoint_captured"))
        assert spool.dropped == 3
        assert drained(spool) == [1, 2]

    def test_any_other_fact_is_kept_and_waits_behind_the_rest(self) -> None:
        spool = Spool(memory_facts=3, disk_bytes=0)
        spool.push(fact(1))
        spool.push(fact(2, "checkpoint_captured"))
        spool.push(fact(3, "checkpoint_replicated"))
        assert spool.push(fact(4, "node_lost")) is False
        assert counters(spool.in_memory()) == [1, 2, 3]
        assert spool.dropped == 0
        assert len(spool) == 4
        assert drained(spool) == [1, 2, 3, 4]

    def test_nothing_but_checkpoint_facts_is_lost_when_the_disk_stays_full(self) -> None:
        spool = Spool(memory_facts=8, disk_bytes=600)
        kept = []
        for counter in range(1, 201):
            expendable = counter % 4 != 0
            spool.push(fact(counter, "checkpoint_captured" if expendable else "worker_exited"))
            if not expendable:
                kept.append(counter)
        assert spool.dropped > 0
        assert set(kept) <= set(drained(spool))

    def test_the_disk_is_never_used_beyond_its_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        files = _watch_files(monkeypatch)
        spool = Spool(memory_facts=1, disk_bytes=1_000)
        for counter in range(1, 200):
            spool.push(fact(counter, "checkpoint_captured"))
        assert len(files) == 1
        assert 800 < files[0].seek(0, 2) <= 1_000

    def test_the_number_of_lost_facts_is_said_without_filling_the_log(self) -> None:
        with capture_logs() as logs:
            spool = Spool(memory_facts=1, disk_bytes=0)
            for counter in range(1, 102):
                spool.push(fact(counter, "checkpoint_captured"))
        said = [line["dropped"] for line in logs if line["event"] == "spool_full"]
        assert said == [1, 2, 4, 8, 16, 32, 64]

    def test_a_disk_that_refuses_drops_a_checkpoint_fact_and_keeps_another(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(spool_module.tempfile, "TemporaryFile", refuse)
        with capture_logs() as logs:
            spool = Spool(memory_facts=1)
            spool.push(fact(1))
            assert spool.push(fact(2, "checkpoint_captured")) is False
            assert spool.push(fact(3)) is False
        assert counters(spool.in_memory()) == [1]
        assert drained(spool) == [1, 3]
        assert any(line["event"] == "spool_not_on_disk" and "No space left" in line["why"] for line in logs)


def test_nothing_is_left_in_the_temporary_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module.tempfile, "tempdir", str(tmp_path))
    spool = Spool(memory_facts=1)
    for counter in range(1, 100):
        spool.push(fact(counter))
    assert list(tmp_path.iterdir()) == []
    assert len(spool) == 99


def _watch_files(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    real = spool_module.tempfile.TemporaryFile

    def make(*args: Any, **more: Any) -> Any:
        made.append(real(*args, **more))
        return made[-1]

    monkeypatch.setattr(spool_module.tempfile, "TemporaryFile", make)
    return made
