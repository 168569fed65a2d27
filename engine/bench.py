"""What the engine costs: events a second, and how long a decision takes on a large state.

The engine has no clock; the caller lends one.
"""

from collections.abc import Callable, Iterator

from lmr.engine import events as ev
from lmr.engine.decide import decide
from lmr.engine.record import Record
from lmr.engine.reduce import apply
from lmr.engine.settle import settle_decisions
from lmr.engine.state import State

ClockNs = Callable[[], int]


def large_run(nodes: int, steps: int, *, ranks_per_node: int = 8) -> Iterator[ev.Data]:
    """The facts of a run that trains: joins, starts, and per step a capture and a replica a slot and a clean check."""
    yield ev.RunOpened(
        run_id="bench",
        min_nodes=nodes,
        max_nodes=nodes + 16,
        local_world_size=ranks_per_node,
        detection=True,
        checkpointing=True,
        policy={},
    )
    for index in range(nodes + 16):
        yield ev.NodeJoined(
            node=f"n{index}", incarnation=f"n{index}-a", address="10.0.0.1", failure_domain=f"r{index // 16}"
        )
    for index in range(nodes):
        yield ev.GenerationStarted(generation=0, node=f"n{index}")
    for step in range(1, steps + 1):
        for slot in range(nodes):
            digest, holder = f"{step}-{slot}", f"n{(slot + 1) % nodes}"
            yield ev.CheckpointCaptured(
                generation=0, step=step, slot=slot, node=f"n{slot}", digest=digest, bytes=1 << 30
            )
            yield ev.CheckpointReplicated(generation=0, step=step, slot=slot, holder=holder, digest=digest)
        yield ev.ReplayChecked(generation=0, step=step, recipe="bench", verdict="clean", ranks=(), peers=())


def loaded_state(nodes: int, steps: int) -> State:
    """The state of a large run; its size is the memory a decider needs."""
    state = State()
    for data in large_run(nodes, steps):
        _take(state, data)
    return state


def reducer_events_per_s(clock_ns: ClockNs, *, nodes: int = 64, steps: int = 200) -> tuple[int, int]:
    """Events folded a second over the first and over the last tenth of a run: equal, if cost does not grow."""
    state = State()
    facts = list(large_run(nodes, steps))
    tenth = len(facts) // 10
    rates = []
    for part in (facts[:tenth], facts[tenth:-tenth], facts[-tenth:]):
        began = clock_ns()
        for data in part:
            _take(state, data)
        rates.append(len(part) * 1_000_000_000 // max(1, clock_ns() - began))
    return rates[0], rates[-1]


def decide_p99_us(clock_ns: ClockNs, *, nodes: int = 2_000, samples: int = 100) -> int:
    """99th percentile of one decision on a node loss, in microseconds."""
    state = loaded_state(nodes, 4)
    _apply(state, ev.NodeLost(node="n7", incarnation="n7-a", reason="lease_expired"))
    taken = []
    for _ in range(samples):
        began = clock_ns()
        decide(state)
        taken.append((clock_ns() - began) // 1_000)
    return sorted(taken)[min(len(taken) - 1, len(taken) * 99 // 100)]


def _take(state: State, data: ev.Data) -> None:
    _apply(state, data)
    settle_decisions(state, lambda event, _: _record(state.seq + 1, event.data))


def _apply(state: State, data: ev.Data) -> None:
    apply(state, _record(state.seq + 1, data))


def _record(seq: int, data: ev.Data) -> Record:
    event = ev.Event(data.type, seq, "bench", data)
    return Record("bench", seq, "bench", 1, seq, 0, event, b"", "", "")
