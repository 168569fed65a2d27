"""Runs a campaign: the engine decides, the fleet reacts, the scorer judges."""

from dataclasses import dataclass, field
from random import Random

from lmr.engine import events as ev
from lmr.engine.campaign.generator import MS_PER_STEP, Fleet
from lmr.engine.campaign.profiles import PROFILES
from lmr.engine.campaign.scorer import Score, score
from lmr.engine.campaign.truth import Outcome, PlanSeen
from lmr.engine.deadlines import next_deadline
from lmr.engine.policy import RecoveryPolicy
from lmr.engine.record import Record
from lmr.engine.reduce import apply
from lmr.engine.settle import decision_id, settle_decisions
from lmr.engine.state import State

STANDBYS = 4


def run_campaign(
    profile: str,
    seed: int,
    incidents: int,
    *,
    nodes: int = 8,
    ranks_per_node: int = 2,
    policy: RecoveryPolicy | None = None,
) -> Score:
    """The score of `incidents` failures drawn from a profile. Equal seeds give equal scores.

    `policy` is decided under; its budget of recoveries is lifted, because a campaign is longer than a run.

    Raises:
        KeyError: no profile of that name; `PROFILES` lists them.
    """
    campaign = _Campaign(Fleet(PROFILES[profile], Random(seed), nodes, ranks_per_node), policy or RecoveryPolicy())
    for number in range(1, incidents + 1):
        campaign.incident(number)
    return score(campaign.outcomes, ms_per_step=MS_PER_STEP, total_ms=campaign.fleet.now_ms)


@dataclass
class _Campaign:
    fleet: Fleet
    policy: RecoveryPolicy
    state: State = field(default_factory=State)
    outcomes: list[Outcome] = field(default_factory=list)
    _told: int = 0
    _seen: list[PlanSeen] = field(default_factory=list)

    def incident(self, number: int) -> None:
        """Training, one failure, its recovery, and repairs."""
        if self.state.closed is not None or self.state.opened_ms is None:
            self._open(number)
        fleet = self.fleet
        for at_ms, data in fleet.trains():
            self._fact(at_ms, data)
        injection, told = fleet.fails(number)
        outcome = Outcome(injection, told[0][0], dict(fleet.slots))
        self._seen = outcome.plans
        for at_ms, data in told:
            self._until(at_ms)
            self._fact(at_ms, data)
        self._until(fleet.now_ms + 8_000)
        outcome.closed = self.state.closed is not None
        if outcome.plans and not outcome.closed:
            self._recover(outcome)
        self._seen = []
        self.outcomes.append(outcome)
        if not outcome.closed:
            self._repair()

    def _open(self, number: int) -> None:
        fleet = self.fleet
        self.state = State()
        fleet.slots, fleet.certified, fleet.step, fleet.began, fleet.surely_checked = {}, [], 0, 0, False
        opened = ev.RunOpened(
            run_id=f"campaign-{number}",
            min_nodes=fleet.nodes,
            max_nodes=1_000_000,
            local_world_size=fleet.ranks_per_node,
            detection=True,
            checkpointing=True,
            policy={**self.policy.table(), "max_recoveries": 1_000_000},
        )
        self._fact(fleet.now_ms, opened)
        for _ in range(fleet.nodes + STANDBYS):
            self._fact(fleet.now_ms, fleet.joins(fleet.new_node()))
        self._start()

    def _recover(self, outcome: Outcome) -> None:
        """Agents carry the newest plan out: start, restore, resume. A plan that comes meanwhile is carried out next."""
        fleet = self.fleet
        for _ in range(8):
            if self.state.closed is not None or self.state.hold is not None:
                return
            fleet.now_ms += fleet.random.randrange(5_000, 20_000)
            self._start()
            plan = self.state.plan
            if plan is None or plan.checkpoint is None or plan.to_generation != fleet.generation:
                continue
            fleet.restored(plan.checkpoint.step)
            fleet.now_ms += fleet.random.randrange(2_000, 15_000)
            for name in fleet.slots.values():
                restored = ev.StateRestored(generation=fleet.generation, node=name, step=fleet.step, tier="memory")
                self._fact(fleet.now_ms, restored)
            self._fact(fleet.now_ms, ev.TrainingResumed(generation=fleet.generation, step=fleet.step + 1))
            outcome.resumed_ms = fleet.now_ms
            return

    def _start(self) -> None:
        fleet, generation = self.fleet, self.state.generation
        if generation is None:
            return
        fleet.generation = generation.number
        fleet.slots = {a.slot: a.node for a in generation.slots}
        for name in list(fleet.slots.values()):
            self._fact(fleet.now_ms, ev.GenerationStarted(generation=fleet.generation, node=name))

    def _repair(self) -> None:
        """Rebooted machines come back with new lives, checked ones are uncordoned, broken ones are swapped for new."""
        fleet = self.fleet
        fleet.now_ms += 60_000
        for name in sorted(set(self.state.nodes) - set(fleet.slots.values())):
            node = self.state.nodes[name]
            if node.quarantine is not None and node.quarantine.until == "for_good":
                if node.live:
                    fleet.forgets(name)
                    self._fact(fleet.now_ms, ev.NodeLeft(node=name, incarnation=fleet.life(name), reason="repair"))
                continue
            if node.cordoned_seq is not None or (node.quarantine is not None and node.quarantine.until == "uncordon"):
                self._fact(fleet.now_ms, ev.NodeUncordoned(node=name, by="ops", why="checked"))
            if not node.live:
                self._fact(fleet.now_ms, fleet.joins(name))
        while len(self.state.standbys()) < STANDBYS:
            self._fact(fleet.now_ms, fleet.joins(fleet.new_node()))

    def _until(self, at_ms: int) -> None:
        while (deadline := next_deadline(self.state)) is not None and deadline.due_ms <= at_ms:
            self._append_and_settle(deadline.due_ms, ev.DeadlinePassed(deadline=deadline.id))

    def _fact(self, at_ms: int, data: ev.Data) -> None:
        self._append_and_settle(at_ms, data)

    def _append_and_settle(self, at_ms: int, data: ev.Data) -> None:
        self.fleet.now_ms = max(self.fleet.now_ms, at_ms)
        event = ev.Event(data.type, self.fleet.now_ms, "campaign", data)
        apply(self.state, self._record(event, decision_id(event) if isinstance(data, ev.DeadlinePassed) else "fact"))
        settle_decisions(self.state, self._record)

    def _record(self, event: ev.Event, event_id: str) -> Record:
        """A record without its chain: campaigns measure decisions, not hashing."""
        if isinstance(event.data, ev.PlanCommitted):
            plan = event.data.plan
            self._seen.append(
                PlanSeen(
                    self.fleet.now_ms,
                    plan.action,
                    plan.reason,
                    {a.slot: a.node for a in plan.assignments},
                    plan.checkpoint.step if plan.checkpoint is not None else None,
                    bool(plan.evidence) and (bool(plan.rejected) or plan.action == "start"),
                )
            )
        return Record("campaign", self.state.seq + 1, event_id, 1, self.fleet.now_ms, 0, event, b"", "", "")
