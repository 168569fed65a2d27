"""Which steps of the running generation are kept, and what the digests of their state say."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lmr.engine.events import Data, ReplayChecked, StateDiverged
from lmr.integrations.scout.agreement import Agreement, Told, Verdict
from lmr.integrations.torchrun.pacer import Pacer
from lmr.integrations.torchrun.worker_policy import WorkerPolicy

VERDICTS_KEPT_STEPS = 64


class Retention:
    """Pins, retained steps and verdicts of one generation. Lost with the decider: the next one pins anew.

    Args:
        generation: the generation that begins.
        slots: its slots.
        restored: the step it starts from.
        policy: the run's worker policy.
        world_size: its ranks.
        replicas: copies of a slot there can be now.
        tell_active: sends every active node one message.
        tell_all: sends every node one message, standbys too, which hold replicas.
        publish: appends one fact of the decider.
        undecided: publishes, later, that peers differ without a majority; unless one of them is named meanwhile.
        vouches: whether checks that come after a step's capture have had their say; None where there are none.
        condemned: whether a rank was named for what the run must go back behind; None where nobody looks.
    """

    def __init__(
        self,
        generation: int,
        slots: int,
        restored: int,
        policy: WorkerPolicy,
        *,
        world_size: int,
        replicas: int,
        tell_active: Callable[..., None],
        tell_all: Callable[..., None],
        publish: Callable[[Data], None],
        undecided: Callable[[Data], None],
        vouches: Callable[[int], bool] | None,
        condemned: Callable[[], bool] | None = None,
    ) -> None:
        self._generation = generation
        self._compare = policy.replay.compare_state
        self._tell_active = tell_active
        self._tell_all = tell_all
        self._publish = publish
        self._undecided = undecided
        finite_checked = policy.checkpoint.require_finite
        self._agreement = Agreement(world_size, finite_checked=finite_checked)
        self._verdicts: dict[int, list[Verdict]] = {}
        self._told: set[Verdict] = set()
        self._captured: set[int] = set()
        self._saved: set[int] = set()
        """Steps whose checkpoint is not complete yet."""
        self._pacer = Pacer(
            slots=slots,
            interval=policy.interval,
            replicas=replicas,
            checked=policy.enable_detection and (finite_checked or (self._compare and world_size > 1)),
            publish_ms=policy.recovery.publish_ms,
            restored=restored,
            spill_ms=policy.checkpoint.disk_every_s * 1000 if policy.checkpoint.disk_folder is not None else None,
            vouches=vouches or (lambda _step: True),
            condemned=condemned or (lambda: False),
        )

    def look(self, now_ms: int) -> None:
        """Now and then: checks that come after a capture may have had their say."""
        self._settled(self._pacer.look(now_ms))

    def can_replicate(self, replicas: int) -> None:
        """How many copies of a slot there can be has changed."""
        self._pacer.replicas = replicas

    def progress(self, step: int, now_ms: int) -> None:
        """The newest captured step of slot 0."""
        pin = self._pacer.progress(step, now_ms)
        if pin is not None:
            self._tell_active("pin", generation=self._generation, step=pin)

    def captured(self, step: int, slot: int) -> None:
        """A slot's copy of a step is in the log; verdicts on that step belong there too."""
        self._captured.add(step)
        for verdict in self._verdicts.get(step, []):
            self._tell_verdict(verdict)
        self._settled(self._pacer.captured(slot, step))

    def persisted(self, step: int) -> None:
        """A checkpoint of the script is in the log; verdicts on the step it was saved at belong there too."""
        self._captured.add(step)
        self._saved = {one for one in self._saved if one > step}
        for verdict in self._verdicts.get(step, []):
            self._tell_verdict(verdict)

    def replicated(self, step: int, slot: int, holder: str) -> None:
        """A replica of a slot's copy is in the log."""
        self._settled(self._pacer.replicated(slot, step, holder))

    def _settled(self, done: bool) -> None:
        if done:
            spill = self._pacer.spill(time.monotonic_ns() // 1_000_000)
            self._tell_all("retain", generation=self._generation, steps=self._pacer.retained(), spill=spill)

    def digests(self, step: int, told: dict[str, dict[str, Any]], *, saved: bool = False) -> None:
        """What one node's ranks have for the state that peers share: by rank `{"digest", "peers", "finite"}`.

        Args:
            step: of the capture.
            told: by rank.
            saved: whether the script saves this step, too: then the verdict waits for that checkpoint.
        """
        if saved and step not in self._captured:
            self._saved.add(step)
        ranks = {
            int(rank): Told(said["digest"], tuple(said["peers"] or ()) if self._compare else (), said["finite"])
            for rank, said in told.items()
        }
        for verdict in self._agreement.take(step, ranks):
            self._verdicts.setdefault(step, []).append(verdict)
            if verdict.verdict == "corrupt" or step in self._captured:
                self._tell_verdict(verdict)
        for old in [s for s in self._verdicts if s < step - VERDICTS_KEPT_STEPS and s not in self._saved]:
            del self._verdicts[old]

    def _tell_verdict(self, verdict: Verdict) -> None:
        if verdict in self._told:
            return
        self._told.add(verdict)
        publish = self._undecided if verdict.verdict == "corrupt" and not verdict.ranks else self._publish
        publish(_fact_of(self._generation, verdict))
        self._settled(self._pacer.verdict(verdict.step, verdict.verdict))


def _fact_of(generation: int, verdict: Verdict) -> Data:
    if verdict.verdict == "corrupt":
        return StateDiverged(generation=generation, step=verdict.step, ranks=verdict.ranks, peers=verdict.peers)
    return ReplayChecked(
        generation=generation,
        step=verdict.step,
        recipe=verdict.recipe,
        verdict=verdict.verdict,
        ranks=verdict.ranks,
        peers=verdict.peers,
    )
