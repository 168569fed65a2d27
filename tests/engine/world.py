"""A run driven fact by fact, with every decision checked against an independent reading of the records.

Nothing here calls the rules: what lives, what is quarantined and where copies are is worked out from the records alone.
"""

from dataclasses import dataclass, field
from typing import Any

from lmr.engine import Event, Record, State, apply, decision_id, genesis_hash, next_deadline, seal, settle_decisions
from lmr.engine import events as ev
from lmr.engine.plan import Plan

NODES = ("n1", "n2", "n3", "n4", "n5", "n6")
SLOTS, RANKS_PER_NODE = 4, 2
WORLD = SLOTS * RANKS_PER_NODE


@dataclass
class Reading:
    """What a careful reader of the records knows about machines and copies."""

    lives: dict[str, str] = field(default_factory=dict)
    seen: set[tuple[str, str]] = field(default_factory=set)
    cordoned: set[str] = field(default_factory=set)
    drifted: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    copies: dict[tuple[int, int, str, str], str | None] = field(default_factory=dict)
    """(step, slot, holder, tier) -> the life that has it."""
    durable: set[str] = field(default_factory=set)
    corrupt: list[tuple[int, int]] = field(default_factory=list)
    """(generation, step) of every corrupt verdict."""
    restored: list[tuple[int, int]] = field(default_factory=list)
    """(generation, step) of every plan that began a generation."""
    layouts: dict[int, list[str]] = field(default_factory=dict)

    def in_lineage(self, generation: int, step: int) -> bool:
        return all(step <= restored for began, restored in self.restored if began > generation)

    def read(self, data: Any) -> None:  # noqa: C901 - one line an event
        match data:
            case ev.NodeJoined():
                if (data.node, data.incarnation) not in self.seen:
                    self.seen.add((data.node, data.incarnation))
                    self.lives[data.node] = data.incarnation
                    self.drifted.discard(data.node)
            case ev.NodeLost() | ev.NodeLeft():
                if self.lives.get(data.node) == data.incarnation:
                    del self.lives[data.node]
            case ev.RunReopened():
                self.lives.clear()
            case ev.NodeCordoned():
                self.cordoned.add(data.node)
            case ev.NodeUncordoned():
                self.cordoned.discard(data.node)
            case ev.ConfigDrifted() if data.node in self.lives:
                self.drifted.add(data.node)
            case ev.DeviceUnhealthy() if data.severity == "fatal":
                self.broken.add(data.node)
            case ev.CheckpointCaptured():
                self.copies[data.step, data.slot, data.node, "memory"] = self.lives.get(data.node)
            case ev.CheckpointReplicated():
                self.copies[data.step, data.slot, data.holder, "replica"] = self.lives.get(data.holder)
            case ev.CheckpointFlushed():
                self.copies[data.step, data.slot, data.holder, "disk"] = self.lives.get(data.holder)
            case ev.CheckpointPersisted():
                self.durable.add(data.checkpoint_id)
            case ev.ReplayChecked() if data.verdict == "corrupt":
                self._verdict(data)
            case ev.StateDiverged():
                self._verdict(data)
            case ev.PlanCommitted() if data.plan.action in ("start", "restart", "replace"):
                self.layouts[data.plan.to_generation] = [a.node for a in data.plan.assignments]
                assert data.plan.checkpoint is not None
                initial = data.plan.checkpoint.trust == "initial"
                self.restored.append((data.plan.to_generation, -1 if initial else data.plan.checkpoint.step))
            case _:
                pass

    def _verdict(self, data: Any) -> None:
        if data.generation not in self.layouts:
            return
        self.corrupt.append((data.generation, data.step))
        layout = self.layouts[data.generation]
        self.broken.update(layout[rank // RANKS_PER_NODE] for rank in data.ranks if rank < WORLD)


class World:
    """A log and its state; `fact` appends one and settles, `checks` hold for every decision."""

    def __init__(self) -> None:
        self.state = State()
        self.reading = Reading()
        self.records: list[Record] = []
        self.plans: list[Plan] = []
        self.now_ms = 1

    def fact(self, data: Any, source: str = "n1") -> None:
        self._append_and_settle(Event.of(data, at_ms=self.now_ms, source=source), f"line:{len(self.records)}")

    def open(self, **policy: int) -> None:
        self.fact(
            ev.RunOpened(
                run_id="world",
                min_nodes=SLOTS,
                max_nodes=len(NODES),
                local_world_size=RANKS_PER_NODE,
                detection=True,
                checkpointing=True,
                policy=policy,
            )
        )

    def advance(self, ms: int) -> None:
        """Time passes; due deadlines fire."""
        until = self.now_ms + ms
        while (deadline := next_deadline(self.state)) is not None and deadline.due_ms <= until:
            self.now_ms = max(self.now_ms, deadline.due_ms)
            event = Event.of(ev.DeadlinePassed(deadline=deadline.id), at_ms=self.now_ms, source="decider")
            self._append_and_settle(event, decision_id(event))
        self.now_ms = until

    def _append_and_settle(self, event: Event, event_id: str) -> None:
        apply(self.state, self._append(event, event_id))
        settle_decisions(self.state, self._append)

    def _append(self, event: Event, event_id: str) -> Record:
        if isinstance(event.data, ev.PlanCommitted):
            self._check(event.data.plan)
            self.plans.append(event.data.plan)
        previous = self.records[-1].hash if self.records else genesis_hash("world")
        record = seal(
            event,
            run_id="world",
            seq=len(self.records) + 1,
            event_id=event_id,
            recorded_at_ms=self.now_ms,
            epoch=1,
            prev_hash=previous,
        )
        assert all(record.event_id != event_id for record in self.records), event_id
        self.reading.read(event.data)
        self.records.append(record)
        return record

    def _check(self, plan: Plan) -> None:
        assert plan.plan_id == Plan.id_of(plan)
        assert plan.decided_through == len(self.records)
        assert all(0 < seq <= len(self.records) for seq in plan.evidence)
        assert all(0 < seq <= len(self.records) for item in plan.rejected for seq in item.evidence)
        if plan.action in ("restart", "replace", "hold", "halt"):
            assert plan.evidence
            assert plan.rejected
        if plan.action in ("hold", "halt"):
            assert plan.to_generation == plan.from_generation
            assert plan.checkpoint is None
            return
        assert plan.to_generation == plan.from_generation + 1
        assert plan.to_generation not in self.reading.layouts, "two plans for one generation"
        self._check_machines(plan)
        self._check_step(plan)

    def _check_machines(self, plan: Plan) -> None:
        reading = self.reading
        names = [a.node for a in plan.assignments]
        assert [a.slot for a in plan.assignments] == list(range(SLOTS))
        assert len(set(names)) == SLOTS
        before = reading.layouts.get(plan.from_generation, [None] * SLOTS)
        old = {(a.node, a.incarnation) for a in self._last_assignments(plan)}
        for a in plan.assignments:
            assert reading.lives.get(a.node) == a.incarnation, f"{a.node} is not alive"
            assert a.node not in reading.broken, f"{a.node} is condemned"
            assert a.node not in plan.quarantined, f"{a.node} is quarantined"
            if (a.node, a.incarnation) in old and plan.action != "start":
                assert before[a.slot] == a.node, f"{a.node} moved"
            else:
                assert a.node not in reading.cordoned | reading.drifted, f"{a.node} may not be placed"
        assert not set(plan.standby) & (set(names) | set(plan.quarantined) | reading.cordoned | reading.drifted)

    def _last_assignments(self, plan: Plan) -> tuple[Any, ...]:
        for earlier in reversed(self.plans):
            if earlier.to_generation == plan.from_generation and earlier.action in ("start", "restart", "replace"):
                return earlier.assignments
        return ()

    def _check_step(self, plan: Plan) -> None:
        reading, checkpoint = self.reading, plan.checkpoint
        assert checkpoint is not None
        if checkpoint.trust == "initial":
            assert checkpoint.step == 0
            return
        for generation, step in reading.corrupt:
            if reading.in_lineage(generation, step):
                assert checkpoint.step < step, f"restores {checkpoint.step}, corrupt at {step}"
        assert [source.slot for source in checkpoint.sources] == list(range(SLOTS)), "an incomplete step"
        for source in checkpoint.sources:
            if source.tier == "durable":
                assert source.holder in reading.durable
                continue
            key = (checkpoint.step, source.slot, source.holder, source.tier)
            assert key in reading.copies, f"no such copy: {key}"
            life = reading.copies[key]
            assert source.holder in reading.lives, f"{source.holder} is gone, its copy with it"
            assert life in (None, reading.lives[source.holder]), f"an earlier life of {source.holder} had it"
