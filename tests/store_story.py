"""Three weeks of one training run, told as facts: every kind of incident the audit queries ask about.

Eight machines, four of them training, two ranks each. The engine decided over the facts once, and the log was kept:
tests/store/recorded/story.bundle, made by `python tests/store_story.py FILE`. A log that was recorded stays as it is
when the rules change, so the bundle is not made anew with every engine.
"""

import sys
from pathlib import Path

from lmr.engine.events import (
    CheckpointCaptured,
    CheckpointPersisted,
    CheckpointReplicated,
    DeviceUnhealthy,
    Event,
    EventData,
    ExitError,
    GenerationStarted,
    NodeConfirmed,
    NodeCordoned,
    NodeJoined,
    NodeLost,
    NodeUncordoned,
    OperatorRequested,
    PlanCommitted,
    RankHung,
    ReplayChecked,
    RunOpened,
    StateRestored,
    TrainingResumed,
    WorkerExited,
    WorkersFinished,
)
from lmr.engine.offline import run_facts
from lmr.engine.plan import Plan
from lmr.engine.record import Record

RUN = "story"
MONDAY_MS = 1_767_571_200_000  # 2026-01-05 00:00 UTC
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Story:
    """The facts so far, and where the run stands by the engine's own decisions."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, Event]] = []
        self.now_ms = MONDAY_MS

    def say(self, source: str, data: EventData, *, after_ms: int = 1) -> None:
        """One fact, `after_ms` later than the last."""
        self.now_ms += after_ms
        event = Event.of(data, at_ms=self.now_ms, source=source)  # type: ignore[arg-type]
        self.facts.append((f"{source}/life/{len(self.facts) + 1}", event))

    def plan(self) -> Plan:
        """The newest plan, half a minute on (so that deadlines have passed)."""
        plans = [
            record.event.data.plan
            for _, record in run_facts(self.facts)
            if isinstance(record.event.data, PlanCommitted)
        ]
        return plans[-1]

    def join(self, number: int, life: str = "a") -> None:
        """A machine's agent is admitted."""
        node = f"node-{number}"
        data = NodeJoined(
            node=node,
            incarnation=f"{node}-{life}",
            address=f"10.0.0.{number}:29500",
            failure_domain=f"rack-{number % 3}",
            fingerprint="f0",
        )
        self.say(node, data)

    def begin(self, *, up_ms: int = 4_000, restore_ms: int = 2_000) -> None:
        """The newest plan is carried out: workers up, state restored, training resumed."""
        plan = self.plan()
        generation = plan.to_generation
        for slot in plan.assignments:
            self.say(slot.node, GenerationStarted(generation=generation, node=slot.node), after_ms=up_ms // 4)
        if plan.checkpoint is not None and plan.from_generation >= 0:
            step = plan.checkpoint.step
            tiers = {source.slot: source.tier for source in plan.checkpoint.sources}
            for slot in plan.assignments:
                data = StateRestored(
                    generation=generation, node=slot.node, step=step, tier=tiers.get(slot.slot, "memory")
                )
                self.say(slot.node, data, after_ms=restore_ms // 4)
            self.say(plan.assignments[0].node, TrainingResumed(generation=generation, step=step + 1), after_ms=700)

    def train(self, step: int, *, checked: bool = True, after_ms: int = 6 * HOUR_MS) -> None:
        """Training reaches `step`: captured, replicated, and (if `checked`) certified."""
        plan = self.plan()
        generation = plan.to_generation
        self.now_ms += after_ms
        nodes = [slot.node for slot in plan.assignments]
        for slot, node in enumerate(nodes):
            digest = f"{step:08}{slot:02}"
            self.say(
                node,
                CheckpointCaptured(
                    generation=generation, step=step, slot=slot, node=node, digest=digest, bytes=7_000_000_000
                ),
            )
            holder = nodes[(slot + 1) % len(nodes)]
            self.say(
                holder,
                CheckpointReplicated(generation=generation, step=step, slot=slot, holder=holder, digest=digest),
            )
        if checked:
            data = ReplayChecked(
                generation=generation, step=step, recipe="layer", verdict="clean", ranks=(), peers=tuple(range(8))
            )
            self.say(nodes[0], data)

    def node_of(self, slot: int) -> str:
        """Who runs the slot now."""
        return self.plan().assignments[slot].node

    def crash(self, slot: int, step: int, why: str = "IndexError") -> None:
        """One rank of the slot's node dies of its own; its peers follow with collective errors."""
        plan = self.plan()
        node = plan.assignments[slot].node
        error = ExitError(kind="exception", type=why, fingerprint=f"{why}@train.py:{step}")
        self.say(
            node,
            WorkerExited(generation=plan.to_generation, node=node, rank=2 * slot, exit_code=1, step=step, error=error),
        )
        echo = ExitError(kind="collective", type="DistBackendError", fingerprint="peer")
        for other in plan.assignments:
            if other.slot != slot:
                ranks = (2 * other.slot, 2 * other.slot + 1)
                data = WorkerExited(
                    generation=plan.to_generation, node=other.node, ranks=ranks, exit_code=1, step=step, error=echo
                )
                self.say(other.node, data, after_ms=20)
        self.now_ms += 1_000

    def lose(self, slot: int) -> None:
        """The slot's node falls silent."""
        node = self.node_of(slot)
        life = self.plan().assignments[slot].incarnation
        self.say("decider", NodeLost(node=node, incarnation=life, reason="lease_expired"), after_ms=2_500)

    def generation(self) -> int:
        """The running generation."""
        return self.plan().to_generation


def story_facts() -> list[tuple[str, Event]]:
    """The facts of the whole story."""
    story = Story()
    story.say(
        "decider",
        RunOpened(
            run_id=RUN,
            min_nodes=4,
            max_nodes=8,
            local_world_size=2,
            detection=True,
            checkpointing=True,
            policy={"settle_ms": 300},
        ),
    )
    for number in range(1, 7):
        story.join(number)
    story.begin()

    # Week one. A crash, then a machine is lost with the newest step unchecked: recency is overridden.
    story.train(1_000)
    story.crash(1, 1_040)
    story.begin()
    story.train(2_000)
    story.train(2_200, checked=False)
    story.lose(3)
    story.begin(up_ms=9_000, restore_ms=30_000)

    # Somebody takes a standby out of service for a day.
    standby = story.plan().standby[0]
    story.say("operator:ada", NodeCordoned(node=standby, by="ada", why="memory test"), after_ms=HOUR_MS)
    story.say("operator:grace", NodeUncordoned(node=standby, by="grace", why="passed"), after_ms=DAY_MS)

    # Week two. A hang, a GPU that reports fatal errors, a warning that makes no plan.
    story.now_ms = MONDAY_MS + 7 * DAY_MS
    story.train(5_000)
    story.say(
        story.node_of(0),
        RankHung(generation=story.generation(), ranks=(0,), step=5_050, phase="backward", stalled_ms=30_000),
    )
    story.now_ms += 1_000
    story.begin()
    story.train(6_000)
    node = story.node_of(2)
    story.say(node, DeviceUnhealthy(node=node, device="gpu1", metric="ecc_corrected", severity="warning"))
    story.say(node, DeviceUnhealthy(node=node, device="gpu1", metric="ecc_uncorrectable", severity="fatal"))
    story.begin()
    story.join(7)
    story.join(8)

    # Week three. Silent corruption, attributed; then an operator swaps a machine; echoes without a cause; the end.
    story.now_ms = MONDAY_MS + 14 * DAY_MS
    story.train(9_000)
    story.train(9_500, checked=False)
    story.say(
        story.node_of(0),
        ReplayChecked(
            generation=story.generation(), step=9_500, recipe="layer", verdict="corrupt", ranks=(3,), peers=(1, 5, 7)
        ),
    )
    story.begin()
    story.train(11_000)
    asked = OperatorRequested(
        request="swap-1", action="replace", node=story.node_of(1), by="ada", why="fan noise in rack 2"
    )
    story.say("operator:ada", asked)
    story.begin()
    story.train(12_000)
    story.say(
        story.node_of(0), CheckpointPersisted(generation=story.generation(), step=12_000, checkpoint_id="ckpt/12000")
    )
    plan = story.plan()
    for slot in plan.assignments:
        echo = ExitError(kind="collective", type="DistBackendError", fingerprint="peer")
        ranks = (2 * slot.slot, 2 * slot.slot + 1)
        story.say(
            slot.node,
            WorkerExited(
                generation=plan.to_generation, node=slot.node, ranks=ranks, exit_code=1, step=12_010, error=echo
            ),
        )
    for slot in plan.assignments:
        story.say(slot.node, NodeConfirmed(node=slot.node, incarnation=slot.incarnation), after_ms=100)
    story.now_ms += 5_000
    story.begin()
    story.train(15_000)
    for slot in story.plan().assignments:
        story.say(slot.node, WorkersFinished(generation=story.generation(), node=slot.node), after_ms=50)
    return story.facts


def story_records() -> list[Record]:
    """The story as the log records it: facts, deadlines and decisions, chained."""
    return [record for _, record in run_facts(story_facts())]


if __name__ == "__main__":
    import tempfile

    from lmr.store import open_log
    from lmr.store.bundle import export_bundle

    with tempfile.TemporaryDirectory() as folder, open_log(Path(folder) / "events.db") as log:
        log.restore(RUN, story_records())
        export_bundle(log, RUN, Path(sys.argv[1]))
