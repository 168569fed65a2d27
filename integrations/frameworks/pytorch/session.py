"""When state is captured and when it is restored.

A step is complete when the optimizer's hook has run, but the state of that step is not: schedulers, scalers and
averages come after it. The consistent boundary is where the loop asks its training loader for the next batch, before
it is fetched; in a loop without a loader, where the model is next called. There, and nowhere else, state is captured.

The state a plan names is restored at the first training iteration or the first call of the model in training, once the
vault hands it out, which is when every rank agreed on it; and again where the loader stands, because the script's own
per-epoch code ran for the epochs that were passed over.
"""

from __future__ import annotations

import atexit
import mmap
import os
import sys
import time
import traceback
from typing import Any, NoReturn

import torch
from torch import nn

from lmr.integrations.frameworks.adapter import Framework, FrameworkConflict
from lmr.integrations.frameworks.agent_link import AgentLink
from lmr.integrations.frameworks.pytorch import ddp
from lmr.integrations.frameworks.pytorch.captures import Captures
from lmr.integrations.frameworks.pytorch.loaders import Iteration, Loaders, MakeIterator, Track, is_plain
from lmr.integrations.frameworks.pytorch.objects import Objects, replicated
from lmr.integrations.frameworks.pytorch.state import TrainingState
from lmr.integrations.frameworks.pytorch.steps import Steps
from lmr.integrations.frameworks.trainer_context import TrainerContext
from lmr.integrations.gemini.capture import Collection, ShardReader
from lmr.integrations.gemini.client import Restored
from lmr.integrations.gemini.errors import DurableUnreadable, GeminiError, ShardMismatch, VaultUnavailable
from lmr.integrations.gemini.shard import ShardMeta
from lmr.integrations.scout.pulse import Pulse
from lmr.integrations.scout.trainer_checks import TrainerChecks

_RESTORE_THREADS = 4
"""At most; the node's ranks share its cores while they restore."""

_STEPS_WITHOUT_BOUNDARY = 100
"""So many pass before it is said that nothing is captured: some loops take many steps on one batch."""


class Session:
    """One trainer's protection.

    Args:
        context: who the trainer is and what it was told.
        pulse: where checks of the state are told; None when this rank is not observed.
    """

    def __init__(self, context: TrainerContext, pulse: Pulse | None = None) -> None:
        self._context = context
        self._pid = os.getpid()
        self._agent = AgentLink(context)
        self.objects = Objects()
        self.loaders = Loaders(self.objects.loaders, self._agent.degraded)
        self.steps = Steps(self.objects.optimizers, context.resume_step)
        self._state = TrainingState(self.objects, self.loaders, self.steps, self._agent.degraded)
        self.checks = None if pulse is None else TrainerChecks(context, pulse, self.objects, self._agent)
        self._captures = Captures(context, self._agent, self._state)
        self._captured_step = context.resume_step
        self._restored: Restored | None = None
        self._reader: ShardReader | None = None
        self._must_restore = context.enable_checkpoint and context.resume_step > 0
        self._has_restored = False
        self._protecting = context.enable_checkpoint
        self._script_says = False
        self._too_early: ShardMismatch | None = None
        """Why the objects of a loop that has begun are not those that were captured, or not yet."""
        atexit.register(self._at_exit)
        if context.generation > 0 and context.resume_step == 0:
            self._agent.restored(0, "memory")

    @property
    def mine(self) -> bool:
        """Whether this process is the trainer, not a child it forked."""
        return os.getpid() == self._pid

    # Steps -----------------------------------------------------------------------------------------------------

    def step_began(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to write."""
        if self._too_early is not None and self.loaders.arrived:
            self._refuse(self._too_early.why, self._too_early.detail)
        if self._protecting and self.objects.framework is None:
            self._state.before_the_first_step()
        self.steps.began(optimizer)
        if self.checks is not None:
            self.checks.before_write()

    def step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer's step hook ran. A framework says itself what a step is."""
        if self.steps.ended(optimizer, counts=self.objects.framework is None):
            self._say_stepped()

    def _say_stepped(self) -> None:
        self.loaders.stepped()
        self._context.page.write_step(self.steps.completed)
        self._agent.stepped(self.steps.completed)
        if self._protecting and self.steps.completed - self._captured_step == _STEPS_WITHOUT_BOUNDARY:
            self._agent.degraded(
                "captures",
                f"{_STEPS_WITHOUT_BOUNDARY} steps without a boundary: no DataLoader was asked for a batch, no trained "
                f"model was called in training mode; lmr.boundary() says where one is",
            )

    # Frameworks ------------------------------------------------------------------------------------------------

    def claim(self, framework: Framework) -> None:
        """A framework trains in this process: from here on it is asked for what torch does not know.

        Raises:
            FrameworkConflict: another one does already.
        """
        present = self.objects.framework
        if present is not None and present.name != framework.name:
            raise FrameworkConflict(present.name, framework.name)
        self.objects.framework = framework

    def step_completed(self, step: int | None = None) -> None:
        """The framework completed a step of training.

        Args:
            step: how many are complete, as the framework counts them; None: one more.
        """
        self.steps.completed = self.steps.completed + 1 if step is None else step
        self._say_stepped()

    def at_boundary(self) -> None:
        """The framework is between two steps and all its state is consistent. Only one that owns the position asks."""
        self._boundary()

    @property
    def must_restore(self) -> bool:
        """Whether captured state is to be loaded and has not been, or not completely."""
        return self._must_restore

    def peek(self) -> dict[str, Any]:
        """What the framework read at the captured step. Waits until every rank agreed on that step."""
        reader = self._open()
        captured = reader.tree["framework"]
        return reader.decode(captured["state"]) if captured else {}

    def begin_with_the_running_pass(self) -> None:
        """The loop does not repeat complete passes over its data: its next one is the one that was running."""
        self._open()
        self.loaders.begin_with_the_running_pass()

    def degraded(self, what: str, why: str) -> None:
        """Protection is weaker than it should be."""
        self._agent.degraded(what, why)

    def refuse_framework(self, why: str) -> None:
        """A framework no adapter fits was imported: nothing is captured, for half of its state would be."""
        self._stop_protecting("framework", why)

    # Durable checkpoints ---------------------------------------------------------------------------------------

    @property
    def protects_durably(self) -> bool:
        """Whether the script's own checkpoints are followed."""
        return self._context.enable_checkpoint and bool(self._context.checkpoint.get("durable", True))

    @property
    def rank(self) -> int:
        """Global rank."""
        return self._context.rank

    def collect(self, step: int) -> tuple[Collection, bytes, list[int] | None]:
        """All state as it is now: its tensors, everything else, and the ranks that hold the shared part alike."""
        return self._state.collect(step)

    def _read_durable(self, checkpoint_id: str) -> tuple[ShardMeta, mmap.mmap]:
        # Only where a plan names one: it imports all of `torch.distributed.checkpoint`.
        from lmr.integrations.frameworks.pytorch import durable

        return durable.read(checkpoint_id, self.rank)

    def saving(self, step: int) -> None:
        """The script saves this step. Its capture says whether the checkpoint can be trusted: it is made, and checked.

        Args:
            step: completed steps, of which the boundary may have passed or is the next one.
        """
        if self._protecting:
            self._captures.check(step)

    def persisted(self, step: int, checkpoint_id: str) -> None:
        """A checkpoint of the script is complete; the first rank's word counts, which is the last one to know."""
        if self.rank == 0:
            self._agent.persisted(step, checkpoint_id)

    # Boundaries ------------------------------------------------------------------------------------------------

    def at_next(self, track: Track, iteration: Iteration) -> None:
        """A loader is asked for its next batch."""
        if track.training and not self._script_says:
            # Behind the last batch comes any code, not forward and backward: evaluation with other weights, say.
            self._boundary(busy=not self.loaders.is_used_up(track, iteration))

    @property
    def awaits_a_call(self) -> bool:
        """Whether the next call of the model may matter; most of the time it does not."""
        return self._must_restore or self.steps.completed > self._captured_step

    def at_forward(self, module: nn.Module) -> None:
        """A module is called in training mode, outside any other."""
        if self._must_restore and not self._has_restored:
            if self.objects.optimizers.alive() and self._is_optimized(module):
                self.restore()
            return
        stepped = self.steps.completed > self._captured_step and not self._script_says
        if stepped and not self.loaders.feeding() and self._is_optimized(module):
            self._boundary()

    def at_closure(self) -> None:
        """An optimizer is about to call the model itself, and knows its own state from before that."""
        if self.objects.framework is not None or self._script_says:
            return
        if self._must_restore and not self._has_restored:
            self.restore()
        elif self.steps.completed > self._captured_step and not self.loaders.feeding():
            self._boundary(busy=False)

    def at_script_boundary(self) -> None:
        """The script says that it is between two steps; from here on nothing else is taken for a boundary."""
        self._script_says = True
        if self._must_restore and not self._has_restored:
            self.restore()
        else:
            self._boundary()

    def _is_optimized(self, module: nn.Module) -> bool:
        optimized = self.objects.optimized_ids()
        return any(id(parameter) in optimized for parameter in module.parameters())

    def _boundary(self, *, busy: bool = True) -> None:
        """Between two steps; `busy` says whether a forward and a backward follow."""
        step = self.steps.completed
        if step == self._captured_step:
            return
        self._captured_step = step
        self.steps.settle()
        self._protect(step, busy=busy)
        if self.checks is not None:
            self.checks.at_boundary(step)

    def _protect(self, step: int, *, busy: bool) -> None:
        if not self._protecting or (step % self._context.interval and step != self._captures.saved_step):
            return
        if step == self._context.resume_step + 1 and not self._buckets_are_settled():
            return  # the next call of the model rebuilds DDP's buckets; what they become belongs to the state
        try:
            self._captures.take(step, busy=busy)
        except GeminiError as error:
            self._stop_protecting("captures", str(error))

    def _buckets_are_settled(self) -> bool:
        return all(wrapper is None or ddp.is_settled(wrapper) for wrapper in map(replicated, self.objects.roots()))

    @property
    def copying(self) -> bool:
        """Whether a capture is not the vault's yet, because its copy goes on."""
        return self._captures.pending is not None

    def settle(self, *, wait: bool = True) -> None:
        """See `Captures.settle`: to be called before anything writes to parameters."""
        try:
            self._captures.settle(wait=wait)
        except GeminiError as error:
            self._stop_protecting("captures", str(error))

    def _at_exit(self) -> None:
        if self.mine:
            self.settle()

    def _stop_protecting(self, what: str, why: str) -> None:
        """Training goes on without captures; the grant goes back."""
        self._protecting = False
        self._agent.degraded(what, why)
        if self._reader is None:
            self._captures.close()

    def fault(self, where: str, error: BaseException) -> None:
        """Something of ours failed: the script goes on unprotected, or not at all if it was to be restored."""
        detail = "".join(traceback.format_exception_only(error)).strip()
        if self._must_restore and not self.restore_is_over:
            self._refuse("topology_mismatch", f"{where}: {detail}")
        self._stop_protecting(where, detail)

    # Restoring -------------------------------------------------------------------------------------------------

    @property
    def restore_is_over(self) -> bool:
        """Whether everything that was to be restored has been."""
        return not self._must_restore or (self._has_restored and self.loaders.arrived)

    def begin(self, loader: Any, make: MakeIterator) -> Any:
        """A loader is iterated."""
        framework = self.objects.framework
        if framework is not None and framework.owns_position:
            return make(loader)
        if not is_plain(loader):
            if not self._is_evaluating():
                self._agent.degraded("position", f"{type(loader).__name__} may fetch ahead of what it gives out")
            return make(loader)
        if self._must_restore and (framework is None or framework.is_placed):
            self._open()
            if self.loaders.is_on_its_way(loader) and not self.loaders.repeats(loader):
                iterator = self.loaders.lead(loader, make, self._restore_for_a_loop)
                self._finish_restore()
                return iterator
        return self.loaders.begin(loader, make)

    @staticmethod
    def _is_evaluating() -> bool:
        return not torch.is_grad_enabled()

    def read_ahead(self, loader: Any, around: Any) -> None:
        """Another loader takes batches from this one ahead of the loop: see `Loaders.read_ahead`."""
        if self._must_restore:
            self._open()
        self.loaders.read_ahead(loader, around)

    def _open(self) -> ShardReader:
        """Wait for the shard; after this the loaders know where to go."""
        if self._reader is None:
            try:
                wait_s = float(self._context.checkpoint.get("restore_wait_s", 900))
                self._restored = self._captures.vault().restore(self._context.resume_step, wait_s, self._read_durable)
                self._reader = self._read(self._restored)
                if self._reader.tree["step"] != self._context.resume_step:
                    raise ShardMismatch("topology_mismatch", f"the shard is of step {self._reader.tree['step']}")
            except DurableUnreadable as error:
                self._refuse(error.why, error.detail, error.checkpoint_id)
            except ShardMismatch as error:
                self._refuse(error.why, error.detail)
            except VaultUnavailable as error:
                self._refuse("missing", str(error))
            self.loaders.aim(self._reader.tree["position"], self._reader.decode)
        return self._reader

    def _read(self, restored: Restored) -> ShardReader:
        cores = len(os.sched_getaffinity(0)) // self._context.local_world_size
        return ShardReader(restored.memory, restored.meta, min(_RESTORE_THREADS, max(1, cores)))

    def _restore_for_a_loop(self) -> None:
        """Load it where a loop begins; a script may make objects later: when it has its batch, or in a later pass."""
        if self.objects.framework is not None or self._has_restored:
            self.restore()
            return
        self._too_early = None
        try:
            self._load()
        except ShardMismatch as error:
            if error.why != "topology_mismatch":
                self._refuse(error.why, error.detail)
            self._too_early = error
            self._state.load_random_state(self._open())

    def restore(self) -> None:
        """Load the agreed state into the live objects; every rank has it, or none goes on."""
        try:
            self._load()
        except ShardMismatch as error:
            self._refuse(error.why, error.detail)

    def _load(self) -> None:
        self.settle()
        # The loop has drawn random numbers since its loader was led here.
        self._state.load(self._open(), buckets=not self._has_restored, random_state=self._too_early is None)
        self._too_early = None
        assert self._restored is not None
        if not self._has_restored:
            self._has_restored = True
            self._context.page.write_step(self._restored.step)
            self._agent.restored(self._restored.step, self._restored.tier)
        self._finish_restore()

    def _finish_restore(self) -> None:
        if self._must_restore and self.restore_is_over:
            self._must_restore = False
            self._reader = self._restored = None
            self.settle()
            self._captures.done_reading()

    def _refuse(self, why: str, detail: str, checkpoint_id: str | None = None) -> NoReturn:
        """The agreed state cannot be had: say so and wait for the plan that names another; never train on."""
        context, restored = self._context, self._restored
        print(f"lmr: rank {context.rank} cannot restore step {context.resume_step}: {why}: {detail}", file=sys.stderr)
        self._agent.restore_failed(
            context.resume_step,
            context.slot if restored is None else restored.slot,
            (checkpoint_id or "") if restored is None else restored.holder,
            ("durable" if checkpoint_id else "memory") if restored is None else restored.tier,
            why,
        )
        while True:
            time.sleep(3600)
