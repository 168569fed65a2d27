"""RunScout: what all ranks together say. Lives beside the decider; publishes facts, decides nothing.

    node summaries --> Standing --> detectors --> facts for the log
                                        |
                                        +-------> Ask: stacks and flight records of a hang, before the fact is published

Time is passed in, so a recorded stream of summaries gives the same facts again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import structlog

from lmr.engine.events import (
    Artifact,
    CheckpointStalled,
    CollectiveDesynced,
    EventData,
    InputStalled,
    LossDiverged,
    RankHung,
    RankSlowed,
    ReplayChecked,
)
from lmr.integrations.scout import hang
from lmr.integrations.scout.at_rest import RECIPE, AtRestDetector
from lmr.integrations.scout.desync import DesyncDetector
from lmr.integrations.scout.loss import LossDetector
from lmr.integrations.scout.replay_policy import ReplayPolicy
from lmr.integrations.scout.rerun.golden import Golden
from lmr.integrations.scout.rerun.verdicts import Result, ResultInvalid, Verdicts
from lmr.integrations.scout.slow_parts import SlowParts
from lmr.integrations.scout.stall import StallDetector
from lmr.integrations.scout.standing import Standing
from lmr.integrations.scout.straggler import StragglerDetector
from lmr.integrations.scout.strays import RECIPE as BATCHES
from lmr.integrations.scout.strays import StrayDetector
from lmr.integrations.scout.summary import SummaryInvalid, from_wire

log = structlog.get_logger("lmr.scout")

RETAINED_STEPS = 4096
VerdictWord = Literal["clean", "corrupt", "inconclusive"]


@dataclass(frozen=True)
class Ask:
    """Evidence wanted of these ranks; each node answers for its own."""

    request: int
    ranks: tuple[int, ...]


@dataclass
class _Suspicion:
    """A hang whose evidence is on its way."""

    request: int
    found: hang.Hang
    until_ms: int
    awaited: set[int]
    artifacts: list[Artifact] = field(default_factory=list)


class RunScout:
    """Watches one generation after the other.

    Args:
        policy: the run's `[replay]` table.
        golden: results that were agreed on earlier in the run.
    """

    def __init__(self, policy: ReplayPolicy, golden: Golden | None = None) -> None:
        self._policy = policy
        self._golden = golden or Golden()
        self._slow_parts = SlowParts()
        self._nodes: dict[int, str] = {}
        self._requests = 0
        self._begin(Standing(-1, 0, policy.pulse.stale_ms))

    def _begin(self, standing: Standing) -> None:
        self.standing = standing
        self._desync = DesyncDetector(self._policy.desync)
        self._stalls = StallDetector(self._policy.stall, self._policy.hang)
        self._losses = LossDetector(self._policy.loss)
        self._stragglers = StragglerDetector(self._policy.straggler)
        self._strays = StrayDetector(self._policy.batches)
        self._at_rest = AtRestDetector(self._policy.continuity)
        self._reruns = Verdicts(self._policy.rerun, self._golden)
        self._retained: set[int] = set()
        self._suspicion: _Suspicion | None = None
        self._hang_said: tuple[Any, ...] | None = None

    # What happens ----------------------------------------------------------------------------------------------------

    def begin(self, generation: int, world_size: int, nodes: dict[int, str] | None = None) -> None:
        """A new worker group; what was said about older ones no longer counts.

        Args:
            generation: of the group.
            world_size: how many ranks it has.
            nodes: where each rank runs; None: where it always did.
        """
        self._nodes = nodes or {}
        self._begin(Standing(generation, world_size, self._policy.pulse.stale_ms))

    def told(self, message: dict[str, Any], now_ms: int) -> None:
        """A node's message: `pulse`, `captured` or `rerun`."""
        match message["kind"]:
            case "pulse":
                self.heard(message, now_ms)
            case "captured":
                self.captured(message)
            case "rerun":
                self.reran(message, now_ms)

    def heard(self, message: dict[str, Any], now_ms: int) -> None:
        """A node's `pulse` message; one of another generation is ignored, one that is none is said and dropped."""
        if message.get("generation") != self.standing.generation:
            return
        try:
            for told in message["ranks"]:
                self.standing.hear(from_wire(told), now_ms)
            self.standing.learn(message["groups"], message["calls"])
        except (SummaryInvalid, KeyError, TypeError, ValueError, AttributeError) as error:
            log.error("pulse_refused", why=repr(error)[:200])

    def captured(self, message: dict[str, Any]) -> None:
        """A node's answer to an `Ask`."""
        waiting = self._suspicion
        if waiting is None or message.get("request") != waiting.request:
            return
        try:
            waiting.artifacts += [Artifact(name=str(a["name"]), digest=str(a["digest"])) for a in message["artifacts"]]
            waiting.awaited -= {int(rank) for rank in message["ranks"]}
        except (KeyError, TypeError, ValueError) as error:
            log.error("evidence_refused", why=repr(error)[:200])

    def ended(self, generation: int, rank: int, *, clean: bool) -> None:
        """A rank's process ended. After one that did not end well, nobody is judged in this generation."""
        if generation == self.standing.generation:
            (self.standing.finished if clean else self.standing.lost).add(rank)

    def retained(self, step: int) -> None:
        """A step is kept, so a clean check of it is worth telling."""
        self._retained = {kept for kept in self._retained if kept > step - RETAINED_STEPS} | {step}

    def vouches(self, step: int) -> bool:
        """Whether checks that come after a step's capture have had their say and nothing speaks against it.

        Args:
            step: optimizer steps completed.
        """
        policy = self._policy
        if not policy.pulse.enabled:
            return True
        if policy.rerun.enabled and not self._reruns.settled(step):
            return False
        if policy.batches.enabled and not self._strays.vouches(self.standing, step):
            return False
        return not policy.continuity.enabled or self._at_rest.vouches(self.standing, step)

    def condemned(self) -> bool:
        """Whether a rank of this generation was named for damage or for wrong data: what comes after it is not kept."""
        return self._at_rest.named or self._strays.named

    def reran(self, message: dict[str, Any], now_ms: int) -> None:
        """A rank's result of a call that was computed again."""
        if message.get("generation") != self.standing.generation:
            return
        try:
            self._reruns.hear(Result.parse(message), now_ms)
        except ResultInvalid as error:
            log.error("result_refused", why=str(error)[:200])

    @property
    def named_damage(self) -> bool:
        """Whether a rank of this generation was named for state that changed while nobody wrote to it."""
        return self._at_rest.named

    # What follows from it --------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[EventData | Ask]:
        """Look at everything; call it a few times a second.

        Returns:
            Facts to publish, and evidence to ask for.
        """
        policy, standing = self._policy, self.standing
        if not policy.pulse.enabled or not standing.ranks or standing.lost:
            return []
        said: list[EventData | Ask] = []
        if policy.desync.enabled:
            said += self._desynced(now_ms)
        if policy.loss.enabled:
            said += self._diverged(now_ms)
        if policy.batches.enabled:
            said += self._strayed(now_ms)
        if policy.continuity.enabled:
            said += self._damaged(now_ms)
        if policy.rerun.enabled:
            said += self._computed_again(now_ms)
        if not standing.complete(now_ms, policy.pulse.stale_ms):
            return said
        said += self._stalled()
        if policy.straggler.enabled:
            said += self._slowed(now_ms)
        if policy.hang.enabled and not self._desync.has_spoken:
            said += self._hung(now_ms)
        return said

    def _desynced(self, now_ms: int) -> list[EventData]:
        return [
            CollectiveDesynced(
                generation=self.standing.generation, ranks=found.ranks, group=found.group, collective_seq=found.sequence
            )
            for found in self._desync.look(self.standing, now_ms)
        ]

    def _diverged(self, now_ms: int) -> list[EventData]:
        found = self._losses.look(self.standing, now_ms)
        if found is None:
            return []
        return [LossDiverged(generation=self.standing.generation, step=found.step, ranks=found.ranks)]

    def _strayed(self, now_ms: int) -> list[EventData]:
        found = self._strays.look(self.standing, now_ms)
        return [] if found is None else [self._checked(found.step, BATCHES, "corrupt", found.ranks, found.peers)]

    def _damaged(self, now_ms: int) -> list[EventData]:
        return [
            self._checked(found.step, RECIPE, "corrupt" if found.ranks else "inconclusive", found.ranks, found.peers)
            for found in self._at_rest.look(self.standing, now_ms)
        ]

    def _computed_again(self, now_ms: int) -> list[EventData]:
        """What is not clean at once; what is, of steps that are kept only."""
        return [
            self._checked(v.step, v.recipe, v.verdict, v.ranks, v.peers)
            for v in self._reruns.look(self.standing.live, now_ms)
            if v.verdict != "clean" or v.step in self._retained
        ]

    def _checked(
        self, step: int, recipe: str, verdict: VerdictWord, ranks: tuple[int, ...], peers: tuple[int, ...]
    ) -> ReplayChecked:
        return ReplayChecked(
            generation=self.standing.generation,
            step=step,
            recipe=recipe,
            verdict=verdict,
            ranks=ranks,
            peers=peers,
        )

    def _stalled(self) -> list[EventData]:
        kinds = {"input": InputStalled, "checkpoint": CheckpointStalled}
        return [
            kinds[found.kind](
                generation=self.standing.generation, rank=found.rank, step=found.step, stalled_ms=found.stalled_ms
            )
            for found in self._stalls.look(self.standing)
        ]

    def _slowed(self, now_ms: int) -> list[EventData]:
        return [
            RankSlowed(
                generation=self.standing.generation,
                rank=found.rank,
                component=found.component,
                slowdown_pct=found.slowdown_pct,
                windows=found.windows,
            )
            for found in self._stragglers.look(self.standing, now_ms)
            if self._slow_parts.is_of_its_machine((found.rank, found.component), self._nodes.get(found.rank, ""))
        ]

    def _hung(self, now_ms: int) -> list[EventData | Ask]:
        found = hang.find(self.standing, self._policy.hang, input_has_detector=self._policy.stall.input_enabled)
        if found is None:
            self._suspicion = None
            return []
        key = (found.ranks, found.step, found.phase, found.collective)
        if key == self._hang_said:
            return []
        waiting = self._suspicion
        if waiting is None or waiting.found.ranks != found.ranks:
            return [self._ask(found, now_ms)]
        if waiting.awaited and now_ms < waiting.until_ms:
            return []
        self._suspicion = None
        self._hang_said = key
        return [_fact(self.standing.generation, found, waiting.artifacts)]

    def _ask(self, found: hang.Hang, now_ms: int) -> Ask:
        self._requests += 1
        wanted = found.ranks[:4] if found.witness is None else (*found.ranks[:4], found.witness)
        self._suspicion = _Suspicion(
            self._requests, found, now_ms + self._policy.hang.artifact_wait_ms, awaited=set(wanted)
        )
        return Ask(self._requests, wanted)


def _fact(generation: int, found: hang.Hang, artifacts: list[Artifact]) -> RankHung:
    more: dict[str, Any] = {"artifacts": tuple(artifacts)} if artifacts else {}
    return RankHung(
        generation=generation,
        ranks=found.ranks,
        step=found.step,
        phase=found.phase,
        stalled_ms=found.stalled_ms,
        collective=found.collective,
        **more,
    )
