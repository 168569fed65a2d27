"""Checks of the state inside a trainer, between two steps: continuity, and calls computed again.

What fails in a check is said once, and that check is not made any more; training and capture go on.
"""

from __future__ import annotations

from collections.abc import Callable

from lmr.integrations.frameworks.agent_link import AgentLink
from lmr.integrations.frameworks.pytorch.objects import Objects
from lmr.integrations.frameworks.trainer_context import TrainerContext
from lmr.integrations.scout.continuity import Continuity
from lmr.integrations.scout.pulse import Pulse
from lmr.integrations.scout.rerun.reruns import Reruns


class TrainerChecks:
    """The checks that are switched on for this rank.

    Args:
        context: who the trainer is, and the policy.
        pulse: where results are told that are a word or two.
        objects: what the script trains.
        agent: who hears of the others.
    """

    def __init__(self, context: TrainerContext, pulse: Pulse, objects: Objects, agent: AgentLink) -> None:
        self._agent = agent
        self.continuity: Continuity | None = None
        self._reruns: Reruns | None = None
        settings = context.replay.get("continuity", {})
        if settings.get("enabled"):
            self.continuity = Continuity(settings, pulse, objects.optimized_state, agent.degraded)
        settings = context.replay.get("rerun", {})
        if settings.get("enabled"):
            self._reruns = Reruns(
                settings,
                objects.roots,
                lambda: [optimizer for _, optimizer in objects.optimizers.alive()],
                agent.reran,
                agent.degraded,
            )

    def before_write(self) -> None:
        """An optimizer is about to write."""
        if self.continuity is not None and not self._held("continuity", self.continuity.before_write):
            self.continuity = None

    def at_boundary(self, step: int) -> None:
        """A step is complete, its state captured, and nothing writes until the next.

        Args:
            step: optimizer steps completed.
        """
        reruns, continuity = self._reruns, self.continuity
        if reruns is not None and not self._held("replay", lambda: reruns.at_boundary(step)):
            self._reruns = None
        if continuity is not None and not self._held("continuity", lambda: continuity.at_boundary(step)):
            self.continuity = None

    def _held(self, name: str, check: Callable[[], None]) -> bool:
        try:
            check()
        except Exception as error:  # noqa: BLE001  one check less; training goes on
            self._agent.degraded(name, repr(error))
            return False
        return True
