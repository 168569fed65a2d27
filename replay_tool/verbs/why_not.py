"""`explain --why-not OPTION`: why a plan did not do something else.

What the plan itself rejected is quoted. For everything else the state before the plan is asked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lmr.engine.certification import certified
from lmr.engine.events import NodeJoined
from lmr.engine.plan import Plan
from lmr.engine.reduce import apply
from lmr.engine.snapshots import Snapshot
from lmr.engine.state import Node, State
from lmr.engine.steps import StepChooser
from lmr.replay_tool.errors import NotInLog
from lmr.replay_tool.reasons import because
from lmr.replay_tool.sentences import count, listing, numbers
from lmr.replay_tool.source import Log
from lmr.replay_tool.verbs.explain import Explanation

_STEP = re.compile(r"step[= ]?(\d+)")
ACTIONS = ("restart", "replace", "hold", "halt", "start")
SHOWN_NODES = 8
"""How many names a refusal lists."""


@dataclass(frozen=True)
class WhyNot:
    """One question and its answer, in sentences; `rejected` when the plan names the option itself."""

    option: str
    rejected: bool
    answer: tuple[str, ...]
    evidence: tuple[int, ...]


def why_not(log: Log, told: Explanation, option: str) -> WhyNot:
    """Answers one question about a plan.

    Args:
        log: where the plan is recorded.
        told: the plan, explained.
        option: an action, `step=1243`, or a node's name.

    Raises:
        NotInLog: it is none of these; the message says what is allowed.
    """
    named = option.strip()
    step = _STEP.fullmatch(named)
    wanted = f"step {step[1]}" if step else named
    quoted = [item for item in told.rejected if _same(item.option, wanted)]
    plan = told.plan
    state = state_before(log, told.seq)
    if step:
        answer = _about_step(int(step[1]), plan, state)
    elif named in ACTIONS:
        answer = _about_action(named, plan, state)
    else:
        if not quoted and named not in state.nodes:
            _check_node(log, named)
        answer = _about_node(named, plan, state)
    lines = [f"The plan rejected {item.option}: {item.text}." for item in quoted]
    seen = {line.lower() for line in lines}
    lines += [line for line in answer if line.lower() not in seen]
    return WhyNot(wanted, bool(quoted), tuple(lines), tuple(seq for item in quoted for seq in item.evidence))


def _check_node(log: Log, named: str) -> None:
    """Refuses what is no node of the run, so that a slip of the pen is not answered as one."""
    nodes = {record.event.data.node for record in log.records() if isinstance(record.event.data, NodeJoined)}
    if named not in nodes:
        allowed = [*ACTIONS, "step=NUMBER", *sorted(nodes)[:SHOWN_NODES]]
        more = ", ..." if len(nodes) > SHOWN_NODES else ""
        raise NotInLog(f"{log.where}: --why-not {named!r}: allowed: {', '.join(allowed)}{more}")


def state_before(log: Log, seq: int) -> State:
    """The state from which the record at `seq` was decided."""
    state = State()
    for record in log.records():
        if record.seq >= seq:
            break
        apply(state, record)
    return state


def _same(rejected: str, wanted: str) -> bool:
    return (
        rejected == wanted
        or rejected.startswith(f"{wanted} ")
        or rejected in (f"standby {wanted}", f"replace {wanted}")
    )


def _about_action(action: str, plan: Plan, state: State) -> list[str]:
    if action == plan.action:
        return [f"It is what was done: {plan.reason}."]
    match action:
        case "restart" if plan.action == "replace":
            return _not_restart(plan, state)
        case "replace":
            free = [node.name for node in state.standbys()]
            lines = [f"Free standbys at that moment: {listing(free)}."]
            lines += [_blame(node, state) for name in plan.cause.nodes if (node := state.nodes.get(name))]
            return lines
        case "hold" if plan.action in ("restart", "replace"):
            return ["A hold only waits for standbys, and every slot could be filled without waiting."]
        case "halt" if plan.action in ("restart", "replace"):
            used = f"{count(state.recoveries, 'recovery', 'recoveries')} of {state.policy.max_recoveries} were used"
            return [f"A run halts only when it cannot or must not go on; {used}, and a step to restore was there."]
        case "start":
            return ["A start is only made when no generation exists."]
        case _:
            return [f"The plan is {plan.action} for the reason {plan.reason}: {because(plan.reason)}."]


def _not_restart(plan: Plan, state: State) -> list[str]:
    lines = []
    for name in plan.cause.nodes:
        node = state.nodes.get(name)
        if node is None:
            continue
        if not node.live:
            lines.append(f"{name} is gone, so there is nothing to restart on it.")
        elif plan.cause.kind not in ("sdc", "device_failure", "node_loss", "operator", "straggler"):
            lines.append(_blame(node, state))
    return lines or [f"The rule for {plan.cause.kind} is to replace at once, however often the node was blamed before."]


def _blame(node: Node, state: State) -> str:
    window_ms = state.policy.blame_window_s * 1000
    recent = sum(state.now_ms - at_ms <= window_ms for at_ms in node.blamed_ms)
    return f"{node.name} had been blamed {count(recent, 'time')} before within {state.policy.blame_window_s} s."


def _about_node(name: str, plan: Plan, state: State) -> list[str]:
    slots = [item.slot for item in plan.assignments if item.node == name]
    if slots and plan.action in ("start", "restart", "replace"):
        return [f"It is in the plan: {name} has slot {slots[0]}."]
    node = state.nodes.get(name)
    if node is None:
        return [f"{name} had not joined the run before this plan."]
    facts = _condition(node)
    if facts:
        return [f"{name} {facts}."]
    if state.is_active(name):
        return [
            f"{name} held a slot when the plan was made; the plan takes it out because it is blamed ({plan.reason})."
        ]
    if plan.action not in ("start", "replace"):
        return [f"{name} was free, but this plan gives no slot to another node."]
    order = [item.name for item in state.standbys()]
    rule = "who holds the lost slot's shard, then another failure domain, then join order"
    return [f"{name} was free. The order of choice: {rule} ({listing(order)})."]


def _condition(node: Node) -> str:
    if not node.live:
        return "was gone" + (f" since seq {node.gone_seq}" if node.gone_seq else "")
    if node.quarantine is not None:
        ends = {
            "rejoin": "until it joins with a new incarnation",
            "uncordon": "until it is uncordoned",
            "for_good": "for good",
        }
        return f"was quarantined by seq {node.quarantine.seq}, {ends[node.quarantine.until]}"
    if node.cordoned_seq is not None:
        return f"was cordoned by seq {node.cordoned_seq}"
    if node.drifted_seq is not None:
        return f"had drifted from the others' configuration (seq {node.drifted_seq})"
    return ""


def _about_step(step: int, plan: Plan, state: State) -> list[str]:
    if plan.checkpoint is not None and plan.checkpoint.step == step:
        return [f"It is the step the plan restores, {plan.checkpoint.trust}."]
    found = state.copies.by_step.get(step)
    if not found:
        if step == 0:
            return [
                "Step 0 is the last resort: it throws away all training, and something better was there or had been."
            ]
        return [f"No copy of step {step:,} was known: never captured, thrown away by an earlier restore, or forgotten."]
    lines = [line for snapshot in found for line in _about_snapshot(snapshot, state)]
    bad = min(state.corrupt, default=None)
    if bad is not None and step > bad:
        lines.append(f"Step {bad:,} is known to be bad, so {step:,} is too.")
    if plan.checkpoint is not None and plan.checkpoint.step > step:
        lines.append(f"It is older than step {plan.checkpoint.step:,}, which could be restored.")
    return lines


def _about_snapshot(snapshot: Snapshot, state: State) -> list[str]:
    chooser = StepChooser(state)
    step = f"Step {snapshot.step:,}"
    lines = []
    if not chooser.complete(snapshot):
        lost = [slot for slot in range(state.min_nodes) if not _readable(chooser, snapshot, slot, state)]
        which = f"slot {lost[0]} has" if len(lost) == 1 else f"slots {numbers(lost)} have"
        lines.append(f"{step} is not complete: {which} no live source." if lost else f"{step} cannot be restored.")
    if snapshot.corrupt_seq is not None:
        lines.append(f"A check found it corrupt (seq {snapshot.corrupt_seq}).")
    elif not any(snapshot is item for item in certified(state.copies, state.policy.certify_checks)):
        lines.append(
            f"{step} is not certified: "
            + ("a check did not come back clean." if snapshot.checked else "no check ran on it.")
        )
    else:
        lines.append(f"{step} was certified.")
    return lines


def _readable(chooser: StepChooser, snapshot: Snapshot, slot: int, state: State) -> bool:
    return snapshot.durable or any(chooser.holds(snapshot, slot, name) for name in state.nodes)
