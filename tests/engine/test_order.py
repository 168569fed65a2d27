"""Duplicates change nothing, order inside the settle window changes nothing, the future changes nothing."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from transcript import Case, decisions, read_case
from world import NODES, RANKS_PER_NODE, SLOTS, WORLD, World

from lmr.engine import events as ev
from lmr.engine.events import Event
from lmr.engine.offline import decide_facts

CASES = sorted((Path(__file__).parent.parent / "scenarios").glob("*.case"))


def gist(fields: dict[str, Any]) -> tuple[Any, ...]:
    """What a decision does, without the seqs it cites."""
    checkpoint = fields.get("checkpoint")
    return (
        fields["type"],
        fields.get("action"),
        fields["reason"],
        str(fields.get("cause")),
        str(fields.get("assignments")),
        str(fields.get("quarantined")),
        str(checkpoint),
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_fact_delivered_twice(path: Path) -> None:
    case = read_case(path)
    doubled = Case(case.name, case.story, tuple(fact for fact in case.facts for _ in range(2)), ())
    once = [(after, gist(fields)) for after, fields in decisions(case)]
    twice = [((after + 1) // 2, gist(fields)) for after, fields in decisions(doubled)]
    assert once == twice


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_prefix_decides_what_the_whole_decides(path: Path) -> None:
    events = [Event.parse(fact) for fact in read_case(path).facts]
    whole = [(after, record.hash) for after, record in decide_facts(events)]
    for length in range(1, len(events), 5):
        prefix = [(after, record.hash) for after, record in decide_facts(events[:length]) if after < length]
        assert prefix == [item for item in whole if item[0] < length]


def failure_facts() -> st.SearchStrategy[Any]:
    """Facts that settle: none of them decides at once."""
    some = st.lists(st.integers(0, WORLD - 1), min_size=1, max_size=3, unique=True).map(tuple)
    rank, step = st.integers(0, WORLD - 1), st.sampled_from((21, 25, 31, 33))
    return st.one_of(
        st.builds(lambda ranks, step: ev.RankHung(generation=0, ranks=ranks, step=step, stalled_ms=1), some, step),
        st.builds(lambda r: ev.CollectiveDesynced(generation=0, ranks=r, group="g", collective_seq=1), some),
        st.builds(lambda ranks, step: ev.LossDiverged(generation=0, ranks=ranks, step=step), some, step),
        st.builds(lambda r, s: ev.InputStalled(generation=0, rank=r, step=s, stalled_ms=1), rank, step),
        st.builds(lambda s: ev.StateDiverged(generation=0, step=s, ranks=(), peers=(0, 2)), step),
        st.builds(_exit, rank, step, st.sampled_from((None, "collective", "exception"))),
    )


def _exit(rank: int, step: int, kind: str | None) -> ev.WorkerExited:
    error = None if kind is None else ev.ExitError.model_validate({"kind": kind, "type": "E", "fingerprint": "f"})
    node = NODES[rank // RANKS_PER_NODE]
    return ev.WorkerExited(generation=0, node=node, rank=rank, exit_code=1, step=step, error=error)


def _training_world() -> World:
    world = World()
    world.open(restarts_before_replace=1)
    for name in NODES:
        world.fact(ev.NodeJoined(node=name, incarnation=f"{name}-a", address="h"))
    for name in NODES[:SLOTS]:
        world.fact(ev.GenerationStarted(generation=0, node=name))
    for step in (20, 30):
        for slot in range(SLOTS):
            captured = ev.CheckpointCaptured(
                generation=0, step=step, slot=slot, node=NODES[slot], digest=f"d{step}", bytes=1
            )
            world.fact(captured)
            holder = NODES[(slot + 1) % SLOTS]
            world.fact(ev.CheckpointReplicated(generation=0, step=step, slot=slot, holder=holder, digest=f"d{step}"))
        world.fact(ev.ReplayChecked(generation=0, step=step, recipe="r", verdict="clean", ranks=(), peers=()))
    return world


def _outcome(facts: list[Any], direct: Any) -> list[tuple[Any, ...]]:
    world = _training_world()
    for fact in facts:
        world.now_ms += 10
        world.fact(fact)
    if direct is not None:
        world.now_ms += 10
        world.fact(direct)
    world.advance(6_000)
    return [
        (plan.action, plan.cause.kind, plan.cause.nodes, plan.assignments, plan.checkpoint and plan.checkpoint.step)
        for plan in world.plans
    ]


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(failure_facts(), min_size=2, max_size=6))
def test_order_inside_the_settle_window(data: st.DataObject, facts: list[Any]) -> None:
    directs = (
        None,
        ev.NodeLost(node="n2", incarnation="n2-a", reason="lease_expired"),
        ev.ReplayChecked(generation=0, step=28, recipe="r", verdict="corrupt", ranks=(4,), peers=()),
        ev.OperatorRequested.model_validate({"request": "q", "action": "restart", "node": None, "by": "o", "why": "w"}),
    )
    direct = data.draw(st.sampled_from(directs))
    shuffled = data.draw(st.permutations(facts))
    assert _outcome(facts, direct) == _outcome(list(shuffled), direct)
