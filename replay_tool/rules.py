"""The decision rules in words, one per cause: what the rule is, and what it means for the blamed node."""

from __future__ import annotations

from lmr.engine.plan import Plan
from lmr.replay_tool.sentences import count, listing, numbers, ranks

CAUSES = {
    "start": "The first nodes to join, in join order, take the slots; the others stand by.",
    "node_loss": "A node that left, was lost, came back as a new life or never started its workers loses its slot.",
    "device_failure": "A device with a fatal fault does not heal in place, so its node must not be restarted.",
    "sdc": "A replay check or a comparison of replicas found state that is wrong without any error having been raised.",
    "desync": "Ranks issued different collectives, so the group can never complete the next one.",
    "hang": "No progress was made for longer than the detector allows.",
    "input_stall": "Some ranks wait for their data while others have theirs, so the cause is on their nodes.",
    "checkpoint_stall": "Some ranks wait for checkpoint storage while others do not, so the cause is on their nodes.",
    "straggler": "One rank was slower than its peers, long enough and by enough, and all ranks wait for the slowest.",
    "process_crash": "A worker process ended by its own fault while its node is alive.",
    "software_bug": "The same error on every rank, or again after a machine was replaced, is the program's own.",
    "numeric_divergence": "The loss or gradient norm is no longer finite; the state before it still was.",
    "communication": "Workers only reported that a peer vanished, and every node answered: nobody is to blame.",
    "operator": "A person asked for it.",
}
"""Cause kind to the rule's first half: why this counts as a failure of that kind."""

TRUST = {
    "certified": "every check that ran on it came back clean",
    "uncertified": "complete and not known to be bad, but no check has certified it",
    "initial": "the state before the first step",
}

STAYS_OUT = {
    "node_loss": "until it joins with a new incarnation",
    "device_failure": "for good",
    "sdc": "for good",
    "operator": "until it is uncordoned",
}
"""How long a replaced node stays out, by cause; every other cause: until uncordoned."""


def rule(plan: Plan, *, continues: bool) -> str:
    """The rule that fired, in one or two sentences.

    Args:
        plan: the plan.
        continues: True when the plan before it belongs to the same incident: what that one ordered did not succeed.
    """
    kind = plan.cause.kind
    if continues and plan.action in ("restart", "replace"):
        return (
            "The incident goes on: the restore ordered by the plan before did not succeed. What failed is passed over; "
            f"the next source of the same step is used, or else the next older step. {_who_runs(plan)}"
        )
    first = CAUSES.get(kind, f"Cause {kind}.")
    return f"{first} {_consequence(plan)}".strip()


def _consequence(plan: Plan) -> str:
    kind, who = plan.cause.kind, listing(plan.cause.nodes)
    match plan.action:
        case "start":
            return ""
        case "halt":
            return _halt(plan)
        case "hold":
            return (
                "Not enough eligible standbys are free, so the run holds: nothing is started until one joins or is "
                "uncordoned, or until the standby wait of the policy ends."
            )
        case "replace":
            return f"So {who} {_give(plan)} and {_verb(plan)} {STAYS_OUT.get(kind, 'until it is uncordoned')}."
        case "restart":
            return _restart(plan, kind, who)


def _who_runs(plan: Plan) -> str:
    return "The same machines restart." if plan.action == "restart" else f"{listing(plan.cause.nodes)} {_give(plan)}."


def _give(plan: Plan) -> str:
    return "gives its slot to a standby" if len(plan.cause.nodes) == 1 else "give their slots to standbys"


def _verb(plan: Plan) -> str:
    word = "cordoned" if plan.cause.kind == "operator" else "quarantined"
    return f"is {word}" if len(plan.cause.nodes) == 1 else f"are {word}"


def _restart(plan: Plan, kind: str, who: str) -> str:
    if not plan.cause.nodes:
        return "No node is to blame, so the same machines restart."
    if any(item.reason in ("no_standby", "standby_not_free") for item in plan.rejected):
        return f"{who} would have been replaced, but no standby is free and it is alive, so it restarts in place."
    if kind == "operator":
        return "The same machines restart."
    return f"{who} is not blamed often enough within the blame window to be replaced, so the same machines restart."


_HALTS = {
    "no_standby": "No eligible standby became free within the standby wait of the policy.",
    "no_progress": "The last generations ended without restoring a later step than the one they began with: "
    "the failure comes back, and recovering again would only repeat it.",
    "recovery_budget": "The run has used up its recoveries.",
    "no_restorable_state": "No step is left that every slot can restore and that may be trusted.",
    "software_bug": "The same error came back after its one retry, at the same step or an earlier one.",
    "numeric_divergence": "The numbers diverged again after the one rollback, at the same step or an earlier one.",
    "sdc_unattributed": "State was wrong twice among the same peers, no majority says whose, and the standbys do not "
    "suffice to replace them all.",
    "operator_halt": "An operator asked for the run to end.",
}


def _halt(plan: Plan) -> str:
    return f"{_HALTS.get(plan.reason, plan.reason)} So the run halts."


def state_of(plan: Plan) -> str:
    """Which step is restored, how far it is trusted and what it costs."""
    found = plan.checkpoint
    if found is None:
        return "No state is restored by this plan."
    if plan.action == "start":
        return "Training begins at step 0." if found.step == 0 else f"Training begins at step {found.step:,}."
    cost = f"{count(found.lost_steps, 'step')} of training {'is' if found.lost_steps == 1 else 'are'} done again"
    if not found.lost_steps:
        cost = "no training is lost"
    return f"Step {found.step:,} is restored, {found.trust} ({TRUST[found.trust]}); {cost}."


def sources_of(plan: Plan) -> list[str]:
    """One line a kind of source: which slots read their shard from where."""
    if plan.checkpoint is None:
        return []
    own = {item.slot: item.node for item in plan.assignments}
    groups: dict[str, list[int]] = {}
    for source in plan.checkpoint.sources:
        if source.tier == "durable":
            key = "from the framework's durable checkpoint"
        elif source.tier == "memory" and own.get(source.slot) == source.holder:
            key = "from the memory of the slot's own node"
        else:
            kind = {"memory": "the memory", "replica": "the replica in the memory", "disk": "the disk"}[source.tier]
            last = ", which is out of the group (the last resort)" if source.holder in plan.quarantined else ""
            key = f"from {kind} of {source.holder}{last}"
        groups.setdefault(key, []).append(source.slot)
    return [f"{'slot' if len(slots) == 1 else 'slots'} {numbers(slots)} {where}" for where, slots in groups.items()]


def blamed(plan: Plan) -> str:
    """Who is blamed, and how sure that is."""
    if plan.action == "start":
        return "Nothing failed."
    sure = {
        "direct": "seen directly",
        "attributed": "attributed by a detector",
        "ambiguous": "not certain",
    }[plan.cause.confidence]
    if not plan.cause.nodes:
        return f"Nobody is blamed ({sure})."
    if plan.cause.kind == "operator":
        return f"The operator named {listing(plan.cause.nodes)}."
    who = f" ({ranks(plan.cause.ranks)})" if plan.cause.ranks else ""
    verb = "is" if len(plan.cause.nodes) == 1 else "are"
    return f"{listing(plan.cause.nodes)}{who} {verb} blamed ({sure})."
