"""Every effect as it is measured: the fault, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass, field

RANK = 3
GAP_STEPS = 60


@dataclass(frozen=True)
class Case:
    """One fault of a campaign that strikes rank 3, on the second node.

    Args:
        effect: which one.
        variant: which kind of it, where it is measured in several.
        keys: the rest of the fault's table.
        facts: types of the facts that report it; empty: nothing does.
        names: whether one of them must name the culprit.
        cause: kind of the cause of the plan that follows; None: no plan follows.
        note: what is to be said in the table.
    """

    effect: str
    variant: str = ""
    keys: str = ""
    facts: tuple[str, ...] = ()
    names: bool = True
    cause: str | None = None
    note: str = ""

    @property
    def name(self) -> str:
        """Effect and variant."""
        return f"{self.effect}, {self.variant}" if self.variant else self.effect

    def table(self, step: int) -> str:
        """The fault in a campaign file."""
        place = "" if self.effect == "config_drift" else f"rank = {RANK}\nstep = {step}\n"
        return f'[[faults]]\neffect = "{self.effect}"\n{place}{self.keys}\n'


@dataclass(frozen=True)
class Group:
    """Cases that strike one training after the other, `GAP_STEPS` apart.

    Args:
        name: of the group.
        cases: in order.
        arguments: more for the script.
        policy_tables: more tables of the worker policy, or others than usual.
        steps_after: how many steps follow the last fault.
    """

    name: str
    cases: tuple[Case, ...]
    arguments: tuple[str, ...] = ()
    policy_tables: dict[str, str] = field(default_factory=dict)
    steps_after: int = GAP_STEPS

    @property
    def steps(self) -> int:
        """How long to train."""
        return GAP_STEPS * len(self.cases) + self.steps_after

    def campaign(self) -> str:
        """The campaign file."""
        tables = [case.table(GAP_STEPS * number) for number, case in enumerate(self.cases, 1)]
        return "\n".join(["schema_version = 1\nseed = 11\n", *tables])


DIVERGED = ("state_diverged", "replay_checked")
EXITED = ("worker_exited",)

SILENT = Group(
    "silent",
    (
        Case("tensor_corruption", facts=DIVERGED, cause="sdc"),
        Case("stale_state", facts=DIVERGED, cause="sdc"),
        Case("payload_corruption", facts=DIVERGED, cause="sdc"),
        Case("drop", "update", 'target = "update"', DIVERGED, cause="sdc"),
        Case("duplicate", "update", 'target = "update"', DIVERGED, cause="sdc"),
    ),
)
LOUD = Group(
    "loud",
    (
        Case("process_termination", "process", facts=EXITED, cause="process_crash"),
        Case("exception", facts=EXITED, cause="process_crash"),
        Case("io_error", facts=EXITED, cause="process_crash"),
        Case("resource_exhaustion", facts=EXITED, cause="process_crash"),
        Case("hang", facts=("rank_hung",), cause="hang"),
        Case("resource_unavailable", facts=("input_stalled",), cause="input_stall"),
        Case("process_termination", "node", 'scope = "node"', ("node_lost",), cause="node_loss"),
    ),
)
MESSAGES = Group(
    "messages",
    (
        Case("collective_desync", facts=("collective_desynced",), cause="desync"),
        Case("drop", "collective", 'target = "collective"', ("collective_desynced",), cause="desync"),
        Case("duplicate", "collective", 'target = "collective"', ("collective_desynced",), cause="desync"),
        Case("reorder", "collective", 'target = "collective"', ("collective_desynced",), cause="desync"),
        Case(
            "message_drop",
            facts=("rank_hung",),
            names=False,
            cause="hang",
            note="all ranks stand in one collective, and whose messages are missing is not seen from outside",
        ),
    ),
)
COPIES = Group(
    "copies",
    (
        Case("checkpoint_corruption", facts=("restore_failed",), cause="process_crash"),
        Case("checkpoint_truncation", facts=("restore_failed",), cause="process_crash"),
        Case("checkpoint_missing", facts=("checkpoint_dropped",), cause="process_crash"),
    ),
)
SLOW = Group(
    "slow",
    (Case("delay", keys="ms = 150\nfor_steps = 1000", facts=("rank_slowed",), cause="straggler"),),
    policy_tables={"replay.straggler": "window_ms = 1000\n"},
    steps_after=240,
)
LATE = Group(
    "late",
    (Case("timeout", keys="ms = 60000", facts=("rank_hung",), cause="hang"),),
    arguments=("--timeout-s", "20"),
)
EARLY = Group(
    "early",
    (
        Case(
            "timeout",
            "before a hang is judged",
            "ms = 60000",
            EXITED,
            names=False,
            cause="communication",
            note="where collectives time out first, all that is left are errors of those who waited",
        ),
    ),
    arguments=("--timeout-s", "20"),
    policy_tables={"replay.hang": "floor_ms = 30000\n"},
)
CUT = Group(
    "cut",
    (Case("network_partition", keys='node = "node-2"', facts=("node_lost",), cause="node_loss"),),
)
DRIFTED = Group(
    "drifted",
    (Case("config_drift", keys='node = "node-2"\nenviron = { NCCL_ALGO = "Tree" }', facts=("config_drifted",)),),
)
BATCHES = Group(
    "batches",
    tuple(
        Case(effect, "batch", 'target = "batch"', ("replay_checked",), cause="sdc")
        for effect in ("drop", "duplicate", "reorder")
    ),
)
GROUPS = (SILENT, LOUD, MESSAGES, COPIES, SLOW, LATE, EARLY, CUT, DRIFTED, BATCHES)
