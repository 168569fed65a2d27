"""Properties of every history: safety of each plan, totality, liveness, indifference to duplicates and order."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

sys.path.insert(0, str(Path(__file__).parent))
from world import NODES, RANKS_PER_NODE, SLOTS, WORLD, World

from lmr.engine import events as ev

nodes = st.sampled_from(NODES)
slots = st.integers(0, SLOTS - 1)
ranks = st.integers(0, WORLD - 1)
rank_lists = st.lists(st.integers(0, WORLD), max_size=3, unique=True).map(tuple)
steps = st.sampled_from((0, 10, 20, 30, 40))
lives = st.sampled_from(("a", "b", "c"))
behind = st.sampled_from((0, 0, 0, 1, 2))
tiers = st.sampled_from(("memory", "replica", "disk", "durable"))
waits = st.sampled_from((1, 50, 400, 3_500, 6_000, 20_000))


class History(RuleBasedStateMachine):
    """Any sequence of well-formed facts about six nodes, four slots and a few steps. `World` checks every plan."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.open(start_s=15, restore_s=15, standby_wait_s=15, max_recoveries=20)
        for name in NODES[:5]:
            self.join(name, "a")
        self.started()

    @property
    def generation(self) -> int:
        return max(0, self.world.state.last_generation)

    def fact(self, data: Any) -> None:
        self.world.now_ms += 1
        self.world.fact(data)

    @rule(name=nodes, life=lives)
    def join(self, name: str, life: str) -> None:
        self.fact(ev.NodeJoined(node=name, incarnation=f"{name}-{life}", address="h", failure_domain=f"r{name[1]}"))

    @rule(name=nodes, life=lives, lost=st.booleans())
    def end(self, name: str, life: str, lost: bool) -> None:
        made = ev.NodeLost if lost else ev.NodeLeft
        self.fact(made(node=name, incarnation=f"{name}-{life}", reason="x"))

    @rule(name=nodes, kind=st.sampled_from(("cordon", "uncordon", "drift", "device", "warning")))
    def node_word(self, name: str, kind: str) -> None:
        match kind:
            case "cordon":
                self.fact(ev.NodeCordoned(node=name, by="o", why="w"))
            case "uncordon":
                self.fact(ev.NodeUncordoned(node=name, by="o", why="w"))
            case "drift":
                self.fact(ev.ConfigDrifted(node=name, keys=("nccl",)))
            case _:
                severity = "fatal" if kind == "device" else "warning"
                self.fact(
                    ev.DeviceUnhealthy.model_validate(
                        {"node": name, "device": "g", "metric": "m", "severity": severity}
                    )
                )

    @rule()
    def started(self) -> None:
        for assignment in self.world.plans[-1].assignments if self.world.plans else ():
            self.fact(ev.GenerationStarted(generation=self.generation, node=assignment.node))

    @rule(step=steps, name=nodes)
    def restored(self, step: int, name: str) -> None:
        self.fact(ev.StateRestored(generation=self.generation, node=name, step=step, tier="memory"))

    @rule(step=steps)
    def resumed(self, step: int) -> None:
        self.fact(ev.TrainingResumed(generation=self.generation, step=step))

    @rule(name=nodes)
    def finished(self, name: str) -> None:
        self.fact(ev.WorkersFinished(generation=self.generation, node=name))

    @rule(step=steps, back=behind, replicas=st.booleans(), verdict=st.sampled_from(("clean", "inconclusive", None)))
    def checkpoint(self, step: int, back: int, replicas: bool, verdict: str | None) -> None:
        generation = max(0, self.generation - back)
        layout = self.world.reading.layouts.get(generation, [])
        for slot, name in enumerate(layout):
            self.captured(step, slot, name, 0)
            if replicas:
                self.replicated(step, slot, layout[(slot + 1) % SLOTS], 0, False, "d")
        if verdict is not None:
            self.checked(step, 0, verdict, ())

    @rule(step=steps, slot=slots, name=nodes, back=behind)
    def captured(self, step: int, slot: int, name: str, back: int) -> None:
        generation = max(0, self.generation - back)
        self.fact(ev.CheckpointCaptured(generation=generation, step=step, slot=slot, node=name, digest="d", bytes=1))

    @rule(step=steps, slot=slots, name=nodes, back=behind, disk=st.booleans(), digest=st.sampled_from(("d", "d", "x")))
    def replicated(self, step: int, slot: int, name: str, back: int, disk: bool, digest: str) -> None:
        made = ev.CheckpointFlushed if disk else ev.CheckpointReplicated
        generation = max(0, self.generation - back)
        self.fact(made(generation=generation, step=step, slot=slot, holder=name, digest=digest))

    @rule(step=steps, back=behind)
    def persisted(self, step: int, back: int) -> None:
        generation = max(0, self.generation - back)
        self.fact(ev.CheckpointPersisted(generation=generation, step=step, checkpoint_id=f"c{step}"))

    @rule(step=steps, slot=slots, name=nodes, tier=tiers, back=behind)
    def dropped(self, step: int, slot: int, name: str, tier: str, back: int) -> None:
        generation = max(0, self.generation - back)
        self.fact(ev.CheckpointDropped(generation=generation, step=step, slot=slot, holder=name, tier=tier, why="w"))

    @rule(step=steps, slot=slots, name=nodes, tier=tiers, back=behind)
    def restore_failed(self, step: int, slot: int, name: str, tier: str, back: int) -> None:
        self.fact(
            ev.RestoreFailed(
                generation=max(0, self.generation - back),
                node=name,
                step=step,
                slot=slot,
                holder=name,
                tier=tier,
                why="missing",
            )
        )

    @rule(step=steps, back=behind, verdict=st.sampled_from(("clean", "corrupt", "inconclusive")), blamed=rank_lists)
    def checked(self, step: int, back: int, verdict: str, blamed: tuple[int, ...]) -> None:
        generation = max(0, self.generation - back)
        self.fact(
            ev.ReplayChecked.model_validate(
                {
                    "generation": generation,
                    "step": step,
                    "recipe": "r",
                    "verdict": verdict,
                    "ranks": blamed,
                    "peers": [0, 2],
                }
            )
        )

    @rule(step=steps, back=behind, blamed=rank_lists)
    def diverged(self, step: int, back: int, blamed: tuple[int, ...]) -> None:
        generation = max(0, self.generation - back)
        self.fact(ev.StateDiverged(generation=generation, step=step, ranks=blamed, peers=(0, 2)))

    @rule(step=steps, blamed=st.one_of(rank_lists, st.just(tuple(range(WORLD)))))
    def nan(self, step: int, blamed: tuple[int, ...]) -> None:
        self.fact(ev.LossDiverged(generation=self.generation, step=step, ranks=blamed))

    @rule(
        rank=ranks,
        step=st.one_of(st.none(), steps),
        kind=st.sampled_from((None, "collective", "exception")),
        back=behind,
    )
    def exited(self, rank: int, step: int | None, kind: str | None, back: int) -> None:
        generation = max(0, self.generation - back)
        layout = self.world.reading.layouts.get(generation)
        if layout is None:
            return
        error = None if kind is None else ev.ExitError.model_validate({"kind": kind, "type": "E", "fingerprint": "f"})
        self.fact(
            ev.WorkerExited(
                generation=generation,
                node=layout[rank // RANKS_PER_NODE],
                rank=rank,
                exit_code=1,
                step=step,
                error=error,
            )
        )

    @rule(step=st.one_of(st.none(), steps))
    def all_exited(self, step: int | None) -> None:
        for rank in range(WORLD):
            self.exited(rank, step, "exception", 0)

    @rule(blamed=rank_lists, step=steps, back=behind, desync=st.booleans())
    def hung(self, blamed: tuple[int, ...], step: int, back: int, desync: bool) -> None:
        generation = max(0, self.generation - back)
        if desync:
            self.fact(ev.CollectiveDesynced(generation=generation, ranks=blamed, group="g", collective_seq=1))
        else:
            self.fact(ev.RankHung(generation=generation, ranks=blamed, step=step, stalled_ms=1))

    @rule(rank=ranks, windows=st.integers(4, 6), step=steps)
    def slow(self, rank: int, windows: int, step: int) -> None:
        self.fact(
            ev.RankSlowed(generation=self.generation, rank=rank, component="compute", slowdown_pct=30, windows=windows)
        )

    @rule(blamed=st.one_of(rank_lists, st.just(tuple(range(WORLD)))), step=steps, storage=st.booleans())
    def stalled(self, blamed: tuple[int, ...], step: int, storage: bool) -> None:
        made = ev.CheckpointStalled if storage else ev.InputStalled
        for rank in blamed:
            self.fact(made(generation=self.generation, rank=rank, step=step, stalled_ms=1))

    @rule(name=nodes, life=lives)
    def confirmed(self, name: str, life: str) -> None:
        self.fact(ev.NodeConfirmed(node=name, incarnation=f"{name}-{life}"))

    @rule(request=st.sampled_from("pqrs"), action=st.sampled_from(("restart", "replace", "resume")), name=nodes)
    def asked(self, request: str, action: str, name: str) -> None:
        self.fact(
            ev.OperatorRequested.model_validate(
                {"request": request, "action": action, "node": name, "by": "o", "why": "w"}
            )
        )

    @precondition(lambda self: self.world.state.now_ms % 7 == 0)
    @rule()
    def reopened(self) -> None:
        self.fact(ev.RunReopened(run_id="world"))

    @rule(ms=waits)
    def wait(self, ms: int) -> None:
        self.world.advance(ms)

    @invariant()
    def closed_runs_decide_nothing(self) -> None:
        if self.world.plans and self.world.plans[-1].action == "halt":
            assert self.world.state.closed == "halted"

    def teardown(self) -> None:
        """Left alone, every history comes to rest: training, waiting for its first nodes, or closed with a reason."""
        self.world.advance(10_000_000)
        state = self.world.state
        assert state.hold is None or state.closed is not None
        assert state.incident is None or state.closed is not None


def _run(examples: int, length: int) -> None:
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=examples,
            stateful_step_count=length,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_every_history_is_decided_safely() -> None:
    _run(120, 40)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_thousands_of_histories_are_decided_safely() -> None:
    _run(4_000, 60)
