"""What the log says so far: the value that facts fold into and decisions are taken from.

`reduce.apply` is its only writer; everything else reads. Each fold owns one State. Nothing here knows a clock:
`now_ms` is the newest `recorded_at_ms` applied.
"""

from dataclasses import dataclass, field
from typing import Literal

from lmr.engine.lineage import Lineage
from lmr.engine.plan import Assignment, Plan
from lmr.engine.policy import RecoveryPolicy
from lmr.engine.snapshots import Snapshots

Until = Literal["rejoin", "uncordon", "for_good"]
"""When a quarantine ends: with a new incarnation, by an operator, or never."""

_STRENGTH: dict[Until, int] = {"rejoin": 0, "uncordon": 1, "for_good": 2}

FactKind = Literal[
    "operator",
    "device",
    "loss",
    "sdc",
    "mismatch",
    "divergence",
    "desync",
    "hang",
    "input_stall",
    "checkpoint_stall",
    "straggler",
    "crash",
    "echo",
    "restore",
]

STALLS: frozenset[str] = frozenset({"input_stall", "checkpoint_stall"})
DIRECT: frozenset[str] = frozenset({"operator", "device", "loss", "sdc", "straggler", "restore"})
"""Facts that decide at once; the others settle first."""
BAD_STATE: frozenset[str] = frozenset({"sdc", "mismatch", "divergence"})
"""Facts that call a step bad."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One settled fact of an incident, with its ranks mapped to the nodes that ran them."""

    seq: int
    at_ms: int
    kind: FactKind
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    step: int | None = None
    word: str = ""
    """The loss reason, the operator's action, the fingerprint of an error, or why a restore failed."""
    binds_step: bool = True
    """False for a verdict on a step that training does not stand on: the node is condemned, the state is not."""


@dataclass(slots=True)
class Incident:
    """One failure episode that has no plan yet."""

    number: int
    opened_ms: int
    facts: list[Fact] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    first_ms: dict[str, int] = field(default_factory=dict)
    """When each kind of fact first came."""
    settled_seq: int | None = None
    """Seq of the passed settle deadline."""
    waited_seq: int | None = None
    """Seq of the passed confirmation deadline."""
    awaiting: set[str] | None = None
    """Nodes that have not answered since the first secondary exit; None before one came."""
    deadline_seqs: list[int] = field(default_factory=list)

    def add(self, fact: Fact) -> None:
        """Takes one more fact into the incident."""
        self.facts.append(fact)
        self.kinds.add(fact.kind)
        self.first_ms.setdefault(fact.kind, fact.at_ms)

    def of(self, *kinds: str) -> list[Fact]:
        """Its facts of these kinds, in log order."""
        return [fact for fact in self.facts if fact.kind in kinds]

    @property
    def only_echoes(self) -> bool:
        """True when nothing but secondary exits has come."""
        return self.kinds == {"echo"}

    @property
    def direct(self) -> bool:
        """True when a fact has come that decides at once."""
        return not DIRECT.isdisjoint(self.kinds)

    @property
    def due(self) -> bool:
        """True when the incident is to be decided now."""
        if self.direct:
            return True
        if self.settled_seq is None:
            return False
        return not self.only_echoes or self.waited_seq is not None or not self.awaiting


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Why a node may not serve, and until when."""

    until: Until
    seq: int


@dataclass(slots=True)
class Node:
    """One machine, over all its lives."""

    name: str
    incarnation: str | None = None
    incarnations: set[str] = field(default_factory=set)
    live: bool = False
    joined_seq: int = 0
    failure_domain: str | None = None
    cordoned_seq: int | None = None
    drifted_seq: int | None = None
    gone_seq: int | None = None
    quarantine: Quarantine | None = None
    blamed_ms: list[int] = field(default_factory=list)
    """When incidents were attributed to it, oldest first."""

    def condemn(self, until: Until, seq: int) -> None:
        """Quarantines the node; a stronger quarantine stays."""
        if self.quarantine is None or _STRENGTH[until] > _STRENGTH[self.quarantine.until]:
            self.quarantine = Quarantine(until, seq)

    @property
    def eligible(self) -> bool:
        """True when the node may be placed into a slot."""
        return self.live and self.quarantine is None and self.cordoned_seq is None and self.drifted_seq is None


@dataclass(slots=True)
class Generation:
    """The current life of the worker group."""

    number: int
    plan: Plan
    planned_ms: int
    began_step: int
    slots: tuple[Assignment, ...]
    slot_of: dict[str, int]
    started: set[str] = field(default_factory=set)
    all_started_ms: int | None = None
    restored: set[str] = field(default_factory=set)
    resumed_ms: int | None = None
    finished: set[str] = field(default_factory=set)
    highest_step: int | None = None
    first_seen: tuple[int, int] | None = None
    """(step, at_ms) of the first step named after training resumed: what a step takes is measured from it."""
    last_seen: tuple[int, int] | None = None
    passed: set[str] = field(default_factory=set)
    """Deadlines of this generation that have passed."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Training waits for standbys."""

    plan_seq: int
    since_ms: int
    plan: Plan


@dataclass(slots=True)
class Memory:
    """What earlier incidents taught, beyond their generations."""

    bugs: dict[str, int | None] = field(default_factory=dict)
    """Fingerprint seen on every rank -> highest step it struck at (None: unknown)."""
    divergence: int | None = None
    """Highest step at which every rank's loss was not finite."""
    mismatches: set[frozenset[str]] = field(default_factory=set)
    """Nodes whose states differed with no majority."""
    crashes: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """(fingerprint, step) -> nodes that crashed so."""
    evicted_crashes: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """(fingerprint, step) -> nodes that crashed so and were replaced for it."""
    straggler_ms: int | None = None
    recoveries_ms: list[int] = field(default_factory=list)
    """Durations of the newest recoveries, incident to resumed training."""
    incident_opened_ms: int | None = None


@dataclass(slots=True)
class State:
    """Everything the rules may look at."""

    seq: int = 0
    head_hash: str = ""
    now_ms: int = 0
    run_id: str = ""
    opened_ms: int | None = None
    min_nodes: int = 0
    max_nodes: int = 0
    local_world_size: int = 0
    detection: bool = True
    checkpointing: bool = True
    policy: RecoveryPolicy = field(default_factory=RecoveryPolicy)
    nodes: dict[str, Node] = field(default_factory=dict)
    generation: Generation | None = None
    """None until the first plan, and after the run was reopened until the next."""
    last_generation: int = -1
    left_step: int | None = None
    """Highest step of the generation that reopening ended."""
    plan: Plan | None = None
    """The newest committed plan of any action."""
    plans: int = 0
    layouts: dict[int, tuple[Assignment, ...]] = field(default_factory=dict)
    """Which node ran which slot, for every generation."""
    lineage: Lineage = field(default_factory=Lineage)
    copies: Snapshots = field(default_factory=Snapshots)
    corrupt: dict[int, int] = field(default_factory=dict)
    """Corrupt verdicts of the lineage: step -> seq of the first."""
    trusted_step_existed: bool = False
    """True once a certified or durable step existed (any complete one with detection off)."""
    initial_failed_seq: int | None = None
    incident: Incident | None = None
    incidents: int = 0
    outage: dict[int, int | None] = field(default_factory=dict)
    """Ranks of the last storage outage -> the step they stalled at."""
    hold: Hold | None = None
    hold_passed_seq: int | None = None
    requests: set[str] = field(default_factory=set)
    recoveries: int = 0
    stagnant: int = 0
    """Generations in a row that ended without progress."""
    memory: Memory = field(default_factory=Memory)
    reopened: int = 0
    enough_seq: int | None = None
    """After reopening: seq of the join that made the nodes enough."""
    enough_ms: int = 0
    placing_passed: bool = False
    closed: str | None = None
    """Outcome of the closed run."""

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.min_nodes * self.local_world_size

    @property
    def generation_number(self) -> int:
        """The current generation, -1 before the first."""
        return self.last_generation

    def node_of_rank(self, rank: int, generation: int) -> str | None:
        """The node that ran `rank` in `generation`, None when there was no such rank."""
        slots = self.layouts.get(generation, ())
        slot = rank // self.local_world_size if self.local_world_size else len(slots)
        return slots[slot].node if slot < len(slots) else None

    def ranks_of_slot(self, slot: int) -> tuple[int, ...]:
        """The global ranks a slot owns."""
        return tuple(range(slot * self.local_world_size, (slot + 1) * self.local_world_size))

    def is_active(self, node: str) -> bool:
        """True when the node holds a slot of the current generation, dead or alive."""
        return self.generation is not None and node in self.generation.slot_of

    def slot_alive(self, slot: int) -> bool:
        """True when the life that was given the slot still runs."""
        if self.generation is None:
            return False
        assignment = self.generation.slots[slot]
        node = self.nodes[assignment.node]
        return node.live and node.incarnation == assignment.incarnation

    def vacant_slots(self) -> list[int]:
        """Slots whose node's life has ended."""
        if self.generation is None:
            return []
        return [slot for slot in range(len(self.generation.slots)) if not self.slot_alive(slot)]

    def standbys(self) -> list[Node]:
        """Nodes that may be placed, in join order. A new life of a node whose old life is active is one."""
        free = [node for node in self.nodes.values() if node.eligible and not self._holds_slot(node)]
        return sorted(free, key=lambda node: node.joined_seq)

    def quarantined(self) -> list[str]:
        """Names of all quarantined nodes, sorted."""
        return sorted(name for name, node in self.nodes.items() if node.quarantine is not None)

    def _holds_slot(self, node: Node) -> bool:
        if self.generation is None:
            return False
        slot = self.generation.slot_of.get(node.name)
        return slot is not None and self.generation.slots[slot].incarnation == node.incarnation
