"""The model of the log keeps the contract of the real ones: their own suite runs on it."""

import importlib.util
import time
from pathlib import Path

import pytest

from simulation.memory_log import Database, MemoryLog

BELOW_THE_CONTRACT = {
    "test_a_second_writer_waits_for_the_first",  # opens the place again
    "test_recorded_time_holds_still_when_the_clock_steps_back",  # looks into a dialect's tables
    "test_the_head_moves_only_under_the_epoch_that_still_holds",
    "test_every_holder_is_on_record",
    "test_a_log_opened_for_reading_refuses_writes",
}
"""What the suite asks of databases only."""

_spec = importlib.util.spec_from_file_location(
    "store_contract", Path(__file__).parents[1] / "store" / "test_contract.py"
)
assert _spec is not None
assert _spec.loader is not None
_suite = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_suite)
_tests = {name: value for name, value in vars(_suite).items() if name.startswith(("test_", "Test"))}
del _tests["TestFollow"]  # following is polling through an opened place
for _class in _tests.values():
    for _name in BELOW_THE_CONTRACT & vars(_class).keys():
        delattr(_class, _name)
globals().update(_tests)


@pytest.fixture
def log():
    return MemoryLog(Database(lambda: time.time_ns() // 1_000_000))


def test_what_is_left_out_is_there():
    """A name above that the suite does not have would leave nothing out."""
    text = Path(_suite.__file__).read_text()
    assert all(f"def {name}(" in text for name in BELOW_THE_CONTRACT)


def test_a_second_process_sees_what_the_first_committed():
    database = Database(lambda: 1)
    first, second = MemoryLog(database), MemoryLog(database)
    first.append("r", _suite.batch(2))
    assert [r.seq for r in second.read("r")] == [1, 2]
