"""Where copies go: the same nodes give the same placement, domains differ as far as they can, standbys share slots."""

from dataclasses import dataclass

import pytest

from lmr.engine.plan import Assignment, Cause, Plan
from lmr.integrations.torchrun.orders import Dispatch
from lmr.integrations.torchrun.pacer import Pacer


@dataclass
class Node:
    node: str
    failure_domain: str | None = None
    vault_port: int | None = 1
    incarnation: str = "a"
    address: str = "10.0.0.1"
    peer_port: int = 2


def plan(active):
    """A plan that gives each node the slot of its place."""
    assignments = tuple(
        Assignment(slot=slot, node=node, incarnation="a", first_rank=slot, local_world_size=1)
        for slot, node in enumerate(active)
    )
    return Plan(
        plan_id="p",
        run_id="r",
        incident=0,
        from_generation=-1,
        to_generation=0,
        action="start",
        cause=Cause(kind="start", nodes=(), ranks=(), confidence="direct"),
        assignments=assignments,
        quarantined=(),
        standby=(),
        checkpoint=None,
        reason="initial_placement",
        evidence=(),
        rejected=(),
        economics=None,
        decided_through=0,
        policy_digest="",
        engine="",
    )


def placed(nodes, active, replicas=1, standby_slots=4, out=frozenset()):
    """For each active node, who gets its copies."""
    live = {node.node: node for node in nodes}
    dispatch = Dispatch(plan(active), {}, replicas, standby_slots, "")
    return {name: [p["node"] for p in dispatch.replicate_to(live[name], live, out)] for name in active if name in live}


def domains(**named):
    return [Node(name, domain) for name, domain in named.items()]


@pytest.mark.parametrize(
    ("nodes", "active", "replicas", "wanted"),
    [
        (domains(a=None, b=None, c=None), "abc", 1, {"a": ["b"], "b": ["c"], "c": ["a"]}),
        (domains(a="1", b="1", c="2", d="2"), "abcd", 1, {"a": ["c"], "b": ["c"], "c": ["a"], "d": ["a"]}),
        (
            domains(a="1", b="2", c="2", d="3"),
            "abcd",
            2,
            {"a": ["b", "d"], "b": ["d", "a"], "c": ["d", "a"], "d": ["a", "b"]},
        ),
        (domains(a="1", b="1"), "ab", 2, {"a": ["b"], "b": ["a"]}),
        (domains(a=None, b=None), "ab", 0, {"a": [], "b": []}),
    ],
    ids=["ring", "other domain first", "two other domains", "no more than there are", "none"],
)
def test_copies_on_active_nodes(nodes, active, replicas, wanted):
    assert placed(nodes, active, replicas) == wanted
    assert placed(nodes[::-1], active, replicas) == wanted, "the order in which nodes are known does not matter"


def test_each_standby_holds_its_share_of_the_slots_and_no_more_than_it_may():
    nodes = domains(a=None, b=None, c=None, d=None, s1=None, s2=None)
    found = placed(nodes, "abcd", standby_slots=4)
    assert [peers[1] for peers in found.values()] == ["s1", "s2", "s1", "s2"]
    found = placed(nodes, "abcd", standby_slots=1)
    assert [peers[1:] for peers in found.values()] == [["s1"], ["s2"], [], []]


def test_a_standby_takes_the_place_of_an_active_node_that_is_not_there():
    assert placed(domains(a=None, s=None), "a", replicas=1, standby_slots=0) == {"a": ["s"]}
    assert placed(domains(a=None, b=None, s=None), "ab", replicas=2, standby_slots=0) == {
        "a": ["b", "s"],
        "b": ["a", "s"],
    }


def test_a_node_that_will_not_be_placed_gets_copies_only_for_want_of_a_standby():
    nodes = domains(a=None, o=None, s=None)
    assert placed(nodes, "a", out={"o"}) == {"a": ["s"]}
    assert placed(nodes, "a", replicas=2, out={"o"}) == {"a": ["s", "o"]}
    assert placed(nodes[:2], "a", out={"o"}) == {"a": ["o"]}


def test_a_node_without_a_vault_gets_nothing():
    nodes = [Node("a"), Node("b", vault_port=None), Node("c")]
    assert placed(nodes, "abc") == {"a": ["c"], "b": ["c"], "c": ["a"]}


def pacer(**settings):
    return Pacer(slots=1, interval=1, replicas=0, checked=False, publish_ms=0, restored=0, **settings)


def retain(one, now_ms):
    """One more step is kept."""
    step = one.progress(one.newest + 1, now_ms)
    assert step is not None
    assert one.captured(0, step)
    return step


def test_a_retained_step_goes_to_disk_and_the_next_one_when_it_is_time():
    one = pacer(spill_ms=60_000)
    first = retain(one, 1_000)
    assert one.spill(1_000) == first
    assert one.spill(200_000) is None, "nothing new is kept"
    retain(one, 2_000)
    assert one.spill(2_000) is None, "too early"
    last = retain(one, 61_500)
    assert one.spill(61_500) == last


def test_what_is_checked_goes_to_disk_when_it_is_certified():
    one = Pacer(slots=1, interval=1, replicas=0, checked=True, publish_ms=0, restored=0, spill_ms=0)
    step = one.progress(1, 0)
    assert not one.captured(0, step)
    assert one.spill(1) is None
    assert one.verdict(step, "corrupt")
    assert one.spill(2) is None, "what is not certified is not worth a disk"
    step = one.progress(9, 3)
    one.captured(0, step)
    assert one.verdict(step, "clean")
    assert one.spill(4) == step


def test_without_a_disk_nothing_goes_there():
    one = pacer()
    retain(one, 1_000)
    assert one.spill(1_000) is None
