"""What a plan writes down about a straggler: both sides of the cost-aware rule, and only where that rule decided."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from world import World

from lmr.engine import events as ev
from lmr.engine.causes import classify
from lmr.engine.drafting import plan_event
from lmr.engine.events import PlanCommitted
from lmr.engine.plan import Action, Economics
from lmr.engine.state import Fact
from lmr.engine.straggler import economics

NODES = ("n1", "n2", "n3", "n4", "n5")


def _training(**policy: int) -> World:
    """Four nodes of two ranks train, one stands by; step 10 is complete and checked after a minute."""
    world = World()
    world.open(**policy)
    for node in NODES:
        world.fact(ev.NodeJoined(node=node, incarnation=f"{node}-1", address="a"), node)
    for node in NODES[:4]:
        world.fact(ev.GenerationStarted(generation=0, node=node), node)
    for slot, node in enumerate(NODES[:4]):
        world.advance(15_000)
        world.fact(ev.CheckpointCaptured(generation=0, step=10, slot=slot, node=node, digest=f"d{slot}", bytes=1), node)
    world.fact(ev.ReplayChecked(generation=0, step=10, recipe="r", verdict="clean", ranks=(), peers=()), "n1")
    return world


def _slow(world: World, rank: int, pct: int, node: str) -> None:
    slowed = ev.RankSlowed(generation=0, rank=rank, component="compute", slowdown_pct=pct, windows=6)
    world.fact(slowed, node)


def test_a_replaced_straggler_is_written_down_with_gain_and_cost() -> None:
    world = _training(horizon_s=100_000)
    _slow(world, 3, 25, "n2")
    plan = world.plans[-1]
    assert (plan.action, plan.reason, plan.cause.nodes) == ("replace", "straggler", ("n2",))
    remaining_ms = 100_000_000 - 60_000
    assert plan.economics == Economics(gain_ms=remaining_ms * 25 // 125, cost_ms=world.state.policy.start_s * 1000)
    assert plan.to_generation == 1


def test_the_plain_rule_writes_no_figures() -> None:
    world = _training()
    _slow(world, 3, 25, "n2")
    assert (world.plans[-1].reason, world.plans[-1].economics) == ("straggler", None)


def test_a_replacement_for_another_cause_writes_no_figures() -> None:
    world = _training(horizon_s=100_000)
    world.fact(ev.DeviceUnhealthy(node="n3", device="gpu0", metric="xid_79", severity="fatal"), "n3")
    assert (world.plans[-1].action, world.plans[-1].economics) == ("replace", None)


@pytest.mark.parametrize(("action", "written"), [("replace", True), ("restart", False), ("halt", False)])
def test_of_several_slow_ranks_the_slowest_counts_and_only_a_replacement_weighs_it(
    action: Action, written: bool
) -> None:
    """Drafted by hand: the state a fact earlier, so that both slow ranks are in one incident."""
    world = _training(horizon_s=100_000)
    state = world.state
    world.fact(ev.WorkerExited(generation=0, node="n1", rank=0, signal=9, step=10, error=None), "n1")
    assert state.incident is not None
    for seq, pct in ((101, 20), (102, 50)):
        state.incident.add(Fact(seq, state.now_ms, "straggler", ("n2",), (3,), word=str(pct)))
    state.incident.facts.pop(0)
    drafted = plan_event(
        state,
        state.incident,
        classify(state, state.incident),
        action,
        to_generation=1,
        assignments=(),
        quarantined=(),
        standby=(),
        checkpoint=None,
        reason="straggler",
        rejected=(),
    )
    assert isinstance(data := drafted.data, PlanCommitted)
    assert data.plan.cause.kind == "straggler"
    assert data.plan.economics == (economics(state, 50) if written else None)
    assert economics(state, 50) != economics(state, 20)
