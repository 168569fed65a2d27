"""The engine's own speed: events folded a second, the price of a decision, memory by the size of the job."""

from __future__ import annotations

import time
import tracemalloc

from lmr.engine.bench import decide_p99_us, loaded_state, reducer_events_per_s

NODES = 2_000


def run(*, quick: bool) -> list[dict[str, object]]:
    """Rows of one number each, with its unit.

    Args:
        quick: a tenth of the nodes in the memory measurement.
    """
    first, last = reducer_events_per_s(time.perf_counter_ns)
    tracemalloc.start()
    state = loaded_state(200 if quick else NODES, 2)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    nodes = 200 if quick else NODES
    assert state.now_ms >= 0
    return [
        {"bench": "fold and decide, first tenth of a log", "unit": "events/s", "value": str(first)},
        {"bench": "fold and decide, last tenth of a log", "unit": "events/s", "value": str(last)},
        {"bench": f"one decision, {NODES} nodes, p99", "unit": "us", "value": str(decide_p99_us(time.perf_counter_ns))},
        {"bench": "state", "unit": "KiB per 1,000 nodes", "value": str(taken * 1_000 // nodes // 1024)},
    ]
