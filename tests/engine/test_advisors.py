"""Advice and benches: figures worked out by hand on small logs."""

import time

import pytest

from lmr.engine.advisors import Observed, checkpoint_interval, observe, retry_budget, standby_pool
from lmr.engine.bench import decide_p99_us, large_run, reducer_events_per_s
from lmr.engine.events import Event, NodeJoined, NodeLost, TrainingResumed
from lmr.engine.offline import run_facts


def test_a_log_is_read_once() -> None:
    told = [Event.of(data, at_ms=1_000, source="n0") for data in large_run(4, 2)]
    told += [
        Event.of(NodeLost(node="n1", incarnation="n1-a", reason="x"), at_ms=11_000, source="decider"),
        Event.of(TrainingResumed(generation=1, step=3), at_ms=21_000, source="n0"),
        Event.of(NodeJoined(node="n1", incarnation="n1-b", address="h"), at_ms=61_000, source="n1"),
    ]
    found = observe(record for _, record in run_facts(told))
    assert (found.recoveries, found.nodes_replaced, found.run_ms) == (1, 1, 60_000)
    assert (found.repairs_ms, found.recoveries_ms) == ([50_000], [10_000])


@pytest.mark.parametrize(("replaced", "percent", "pool"), [(0, 99, 0), (10, 90, 2), (10, 99, 4), (20, 99, 6)])
def test_standby_pool_is_a_poisson_quantile(replaced: int, percent: int, pool: int) -> None:
    """Means 0, 1, 1 and 2: cumulative 0.920 at 2 and 0.996 at 4 for mean 1; 0.995 at 6 for mean 2."""
    observed = Observed(run_ms=1_000_000, nodes_replaced=replaced)
    assert standby_pool(observed, never_hold_pct=percent, repair_ms=100_000).value == pool


def test_checkpoint_interval_is_young_and_daly() -> None:
    observed = Observed(run_ms=20_000_000, recoveries=4)
    assert checkpoint_interval(observed, capture_ms=1_000).value == 100_000


def test_retry_budget_is_geometric() -> None:
    """q = (9 + 1) / (98 + 2) = 0.1: two restarts leave 1 % doubt."""
    assert retry_budget(Observed(restarts_in_place=98, blamed_again=9), sure_pct=98).value == 2
    assert retry_budget(Observed(), sure_pct=90).value == 4


def test_benches_run() -> None:
    first, last = reducer_events_per_s(time.perf_counter_ns, nodes=8, steps=300)
    assert min(first, last) > 1_000
    assert decide_p99_us(time.perf_counter_ns, nodes=50, samples=5) > 0


def test_cost_does_not_grow_with_the_log() -> None:
    """Counted, not timed: the state a run leaves behind has the same size after 300 steps and after 900."""
    from lmr.engine.bench import loaded_state

    counts = [len(loaded_state(4, steps).copies.by_step) for steps in (300, 900)]
    assert max(counts) <= 130 + 16
