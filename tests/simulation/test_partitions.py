"""Partitions of a known shape: three nodes train, a fourth stands by, and some cannot reach the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from lmr.engine.events import NodeJoined, NodeLost, PlanCommitted
from lmr.integrations.torchrun.config import BackendConfig
from simulation.history import DATABASE_HOST, History, Shape, quiet
from simulation.world import Process

CUT_AT_S = 3.0
NODES = ("node-1", "node-2", "node-3", "node-4")
HOST = {node: f"10.0.0.{number}" for number, node in enumerate(NODES, 1)}


class Scene(History):
    """Four nodes that start one after the other, and one cut."""

    def __init__(
        self,
        side: set[str],
        seconds: float,
        *,
        embedded: bool,
        seed: int,
        steps: int = 60,
        join_timeout_ms: int = 60_000,
    ) -> None:
        shape = Shape(embedded, min_nodes=3, max_nodes=4, nproc=1, steps=steps, faults=0, checkpoints=True)
        super().__init__(seed, shape)
        self._join_timeout_ms = join_timeout_ms
        self.faults_end_s = CUT_AT_S + seconds
        self._lossy = 0.0
        self._cut_off = (side, seconds)

    def _schedule(self) -> None:
        for number, node in enumerate(NODES):
            self.world.at(0.3 * number, lambda node=node: self.start(node))
        self.world.at(CUT_AT_S, lambda: self.cut(*self._cut_off))
        self.world.at(self.faults_end_s, self._all_well)

    def _config(self, node: str) -> BackendConfig:
        switch = "that fails" if HOST[node] in self._cut_off[0] else "that works"  # so replicas are on either side
        return replace(super()._config(node), join_timeout_ms=self._join_timeout_ms, failure_domain=switch)

    def cut_again(self, node: str, joins: int, seconds: float) -> None:
        """Once the log has so many joins of a node: cut it off before it is told, with all its connections broken."""
        if sum(data.node == node for _, data in self.said(NodeJoined)) < joins:
            self.world.after(0.0001, lambda: self.cut_again(node, joins, seconds))
            return
        self.cut({HOST[node]}, seconds)
        self.network.reset_all(HOST[node])

    def said(self, kind: type) -> list[tuple[float, object]]:
        """When events of a kind were recorded, in the world's seconds, and what they say."""
        begun = self.world.wall_ms() - int(self.world.now * 1000) + 1_234
        return [
            ((r.recorded_at_ms - begun) / 1000, r.event.data) for r in self.records if isinstance(r.event.data, kind)
        ]

    @property
    def plans(self) -> list[PlanCommitted]:
        """Every plan."""
        return [data for _, data in self.said(PlanCommitted)]


@pytest.fixture(autouse=True, name="_quiet")
def _silence() -> Iterator[None]:
    with quiet():
        yield


@pytest.fixture(params=range(3))
def scene(request: pytest.FixtureRequest) -> Callable[..., Scene]:
    """Plays a cut under several seeds; nothing that must never be may have been."""

    def play(side: set[str], seconds: float, *, embedded: bool) -> Scene:
        made = Scene(side, seconds, embedded=embedded, seed=request.param)
        assert made.play() == [], "\n".join(made.world.history)
        assert made.closed == "succeeded"
        return made

    return play


def test_a_node_cut_off_is_replaced_by_the_standby(scene):
    """Its worker had stopped before; when it comes back it stands by."""
    found = scene({HOST["node-2"]}, 6, embedded=True)
    assert [plan.plan.action for plan in found.plans] == ["start", "replace"]
    assert [a.node for a in found.plans[1].plan.assignments] == ["node-1", "node-4", "node-3"]


@pytest.mark.parametrize("frozen_after_s", [0.1, 0.5, 0.9])
def test_a_node_cut_off_and_then_frozen_has_no_more_time_than_its_lease(frozen_after_s):
    """The supervisors know until when the agent was sure of its lease, not only when it last ran."""
    scene = Scene({HOST["node-2"]}, 6, embedded=True, seed=1)
    frozen_at = CUT_AT_S + frozen_after_s
    scene.faults_end_s = frozen_at + 10

    def agent() -> Process:
        return next(a.process for a in scene.agents if a.node == "node-2")

    scene.world.at(frozen_at, lambda: agent().pause(machine=False))
    scene.world.at(frozen_at + 10, lambda: agent().resume())
    assert scene.play() == [], "\n".join(scene.world.history)
    assert [plan.plan.action for plan in scene.plans] == ["start", "replace"]


def test_a_node_lost_again_before_it_was_welcomed_joins_once_more():
    """Its third life is waited for as its second was; nothing of the second ends the agent later."""
    scene = Scene({HOST["node-2"]}, 6, embedded=True, seed=1, steps=1_500, join_timeout_ms=12_000)
    scene.faults_end_s = CUT_AT_S + 18
    scene.world.at(CUT_AT_S + 5, lambda: scene.cut_again("node-2", 2, 6))
    assert scene.play() == [], "\n".join(scene.world.history)
    assert scene.closed == "succeeded"
    assert [data.node for _, data in scene.said(NodeLost)] == ["node-2", "node-2"]
    assert len({data.incarnation for _, data in scene.said(NodeJoined) if data.node == "node-2"}) == 3
    assert [agent.exit_code for agent in scene.agents if agent.node == "node-2"] == [0]


def test_a_short_cut_costs_a_restart_at_most(scene):
    """Fenced and healed within its lease: the run is told, and goes on with the same nodes."""
    found = scene({HOST["node-2"]}, 1.5, embedded=True)
    assert [plan.plan.action for plan in found.plans] in (["start"], ["start", "restart"])
    assert not found.said(NodeLost)


def test_a_deciding_minority_commits_nothing(scene):
    """The host and the standby against two of three nodes: nobody is lost, nobody stops, nothing is planned."""
    found = scene({HOST["node-1"], HOST["node-4"]}, 6, embedded=True)
    assert len(found.plans) == 1
    assert not found.said(NodeLost)
    assert len(found.training.all) == 3


def test_a_majority_cut_off_for_long_stops_by_itself(scene):
    """Only after it has stopped does the decider believe in its loss; the run goes on when enough nodes are back."""
    found = scene({HOST["node-1"], HOST["node-4"]}, 45, embedded=True)
    lost = found.said(NodeLost)
    assert {data.node for _, data in lost} == {"node-2", "node-3"}
    assert min(at for at, _ in lost) > CUT_AT_S + 33
    assert "hold" in [plan.plan.action for plan in found.plans]


def test_with_a_database_the_decider_is_cut_off(scene):
    """Another takes the lease over, the standby takes the slot, and there is one plan for it."""
    found = scene({HOST["node-1"]}, 9, embedded=False)
    assert [plan.plan.action for plan in found.plans] == ["start", "replace"]
    assert [a.node for a in found.plans[1].plan.assignments] == ["node-4", "node-2", "node-3"]
    assert {record.epoch for record in found.records} == {1, 2}


def test_with_a_database_a_deciding_minority_commits_nothing(scene):
    """The database would take its word; that it is a minority, it must know itself."""
    found = scene({HOST["node-1"], HOST["node-4"], DATABASE_HOST}, 6, embedded=False)
    assert len(found.plans) == 1
    assert not found.said(NodeLost)


def test_with_a_database_the_majority_goes_on_without_the_decider(scene):
    """It has the database: a new decider holds the run until a node for the lost slot is back."""
    found = scene({HOST["node-1"], HOST["node-4"]}, 9, embedded=False)
    assert {data.node for _, data in found.said(NodeLost)} == {"node-1", "node-4"}
    assert [plan.plan.action for plan in found.plans] == ["start", "replace", "hold", "replace"]
    assert {agent.node: agent.exit_code for agent in found.agents} == dict.fromkeys(NODES, 0)
