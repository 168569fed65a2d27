"""What the decider makes of what ranks say of their training: detectors, kept steps, drift between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import structlog

from lmr.engine.events import (
    CheckpointCaptured,
    CheckpointPersisted,
    CheckpointReplicated,
    ConfigDrifted,
    Data,
    ReplayChecked,
    WorkerExited,
    WorkersFinished,
)
from lmr.engine.plan import Plan
from lmr.engine.record import Record
from lmr.integrations.scout.drift import DriftDetector
from lmr.integrations.scout.rerun.golden import Golden
from lmr.integrations.scout.run_scout import Ask, RunScout
from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.retention import Retention
from lmr.integrations.torchrun.roster import Roster
from lmr.integrations.torchrun.sessions import Sessions

log = structlog.get_logger("lmr.decider")


class Observation:
    """Feeds the detectors and publishes what they find. Transport as well: lose it, and ranks say it again.

    Args:
        config: the host agent's settings.
        local_world_size: ranks of a node.
        roster: what the log says of the run.
        sessions: the connected agents.
        publish: appends one fact of the decider.
    """

    def __init__(
        self,
        config: BackendConfig,
        local_world_size: int,
        roster: Roster,
        sessions: Sessions,
        publish: Callable[[Data], None],
    ) -> None:
        self._policy = policy = config.worker_policy
        self._local_world_size = local_world_size
        self._roster = roster
        self._sessions = sessions
        self._publish = publish
        self._loop = asyncio.get_running_loop()
        golden = Golden(config.state_folder / "golden.json")
        self._scout = RunScout(policy.replay, golden) if policy.enable_detection else None
        self._drift = DriftDetector(policy.replay.drift)
        self._retention: Retention | None = None

    def begin(self, plan: Plan) -> None:
        """A generation begins: nothing is pinned or compared yet."""
        world_size = len(plan.assignments) * self._local_world_size
        if self._scout is not None:
            nodes = {a.first_rank + local: a.node for a in plan.assignments for local in range(a.local_world_size)}
            self._scout.begin(plan.to_generation, world_size, nodes)
        self._retention = Retention(
            plan.to_generation,
            len(plan.assignments),
            plan.checkpoint.step if plan.checkpoint is not None else 0,
            self._policy,
            world_size=world_size,
            replicas=self._replicas(),
            tell_active=lambda kind, **values: self._sessions.tell(self._roster.active(), kind, **values),
            tell_all=lambda kind, **values: self._sessions.tell(list(self._sessions), kind, **values),
            publish=self._publish,
            undecided=self._publish_undecided,
            vouches=None if self._scout is None else self._scout.vouches,
            condemned=None if self._scout is None else self._scout.condemned,
        )

    def committed(self, record: Record) -> None:
        """A fact of the present generation may end a rank, or complete a step's copies."""
        present = self._roster.generation
        match record.event.data:
            case WorkersFinished(generation=generation, node=node):
                self._ended(generation, self._ranks_of(node), clean=True)
            case WorkerExited(generation=generation, rank=rank, ranks=ranks) if generation == present:
                self._ended(generation, ranks if ranks is not None else (rank or 0,), clean=False)
            case CheckpointCaptured() | CheckpointReplicated() | CheckpointPersisted() as copy:
                if copy.generation == present:
                    self._kept(copy)
            case _:
                pass

    def _kept(self, copy: CheckpointCaptured | CheckpointReplicated | CheckpointPersisted) -> None:
        """A step of the running generation is in one more place."""
        if self._retention is None:
            return
        match copy:
            case CheckpointCaptured(step=step, slot=slot):
                self._retention.captured(step, slot)
                if self._scout is not None:
                    self._scout.retained(step)
            case CheckpointReplicated(step=step, slot=slot, holder=holder):
                self._retention.replicated(step, slot, holder)
            case CheckpointPersisted(step=step):
                self._retention.persisted(step)

    def said(self, node: str, message: dict[str, Any]) -> None:
        """What a node's detectors saw; silently nothing when detection is off."""
        match message["kind"]:
            case "digests":
                if self._retention is not None and message["generation"] == self._roster.generation:
                    self._retention.digests(message["step"], message["ranks"], saved=message["saved"])
            case "pulse" | "captured" | "rerun":
                if self._scout is not None:
                    self._scout.told(message, self._now_ms())
                if self._retention is not None:
                    self._retention.look(self._now_ms())
            case "configuration":
                for drift in self._drift.tell(node, message["keys"]):
                    log.warning("config_drifted", node=drift.node, keys=drift.keys)
                    self._publish(ConfigDrifted(node=drift.node, keys=drift.keys))
            case unknown:
                log.warning("unknown_message", kind=unknown, node=node)

    def progress(self, step: int) -> None:
        """The newest captured step of slot 0 in the present generation."""
        if self._retention is not None:
            self._retention.progress(step, self._now_ms())

    def look(self) -> None:
        """Now and then: let the detectors look at what all ranks said."""
        if self._scout is None:
            return
        if self._retention is not None:
            self._retention.look(self._now_ms())
        for said in self._scout.tick(self._now_ms()):
            if isinstance(said, Ask):
                nodes = {self._node_of(rank) for rank in said.ranks}
                whom = {"ranks": list(said.ranks), "generation": self._roster.generation}
                self._sessions.tell(nodes, "capture", request=said.request, **whom)
            else:
                if not isinstance(said, ReplayChecked) or said.verdict != "clean":
                    log.warning("scout", fact=said.type)
                self._publish(cast("Data", said))

    def nodes_changed(self) -> None:
        """How many copies of a slot there can be may have changed."""
        if self._retention is not None:
            self._retention.can_replicate(self._replicas())

    def forget(self, node: str) -> None:
        """A node is not connected any more."""
        self._drift.forget(node)

    def _publish_undecided(self, data: Data) -> None:
        """Peers differ and no majority names one; a rank's own continuity may, within moments, and then that is all."""
        scout, generation = self._scout, self._roster.generation
        if scout is None:
            self._publish(data)
            return

        def publish() -> None:
            if generation == self._roster.generation and not scout.named_damage:
                self._publish(data)

        self._loop.call_later(self._policy.replay.own_word_ms / 1000, publish)

    def _ended(self, generation: int, ranks: tuple[int, ...], *, clean: bool) -> None:
        if self._scout is not None:
            for rank in ranks:
                self._scout.ended(generation, rank, clean=clean)

    def _replicas(self) -> int:
        return min(self._policy.checkpoint.replicas, len(self._sessions) - 1)

    def _ranks_of(self, node: str) -> tuple[int, ...]:
        plan = self._roster.plan
        for a in plan.assignments if plan is not None else ():
            if a.node == node:
                return tuple(range(a.first_rank, a.first_rank + a.local_world_size))
        return ()

    def _node_of(self, rank: int) -> str:
        plan = self._roster.plan
        slot = rank // self._local_world_size
        return next((a.node for a in plan.assignments if a.slot == slot), "") if plan is not None else ""

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)
