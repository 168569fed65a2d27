"""Every fact and decision as one English sentence, and the small words they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lmr.engine.events import Event
from lmr.engine.plan import Plan

_EXIT_WORDS = {
    "signal": "was killed",
    "exception": "raised an exception",
    "out_of_memory": "ran out of memory",
    "collective": "lost a peer in a collective",
    "nonfinite": "met a value that is not finite",
    "unknown": "ended for an unknown cause",
}


def numbers(values: Iterable[int]) -> str:
    """`0-3, 6`: ascending integers with runs joined."""
    parts: list[str] = []
    run: list[int] = []
    for value in [*sorted(set(values)), None]:
        if run and (value is None or value != run[-1] + 1):
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if value is not None:
            run.append(value)
    return ", ".join(parts)


def ranks(values: Iterable[int]) -> str:
    """`rank 6` or `ranks 0-3, 6`."""
    found = sorted(set(values))
    return f"rank {found[0]}" if len(found) == 1 else f"ranks {numbers(found)}"


def listing(values: Iterable[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    items = list(values)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}" if items else "none"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 step`, `3 steps`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def duration(ms: int | None) -> str:
    """`340 ms`, `2.1 s`, `4 min 10 s`, `3 h 5 min`; an en dash when not known."""
    if ms is None:
        return "–"
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    if ms < 3_600_000:
        return f"{ms // 60_000} min {ms % 60_000 // 1000} s"
    if ms < 86_400_000:
        return f"{ms // 3_600_000} h {ms % 3_600_000 // 60_000} min"
    return f"{ms // 86_400_000} d {ms % 86_400_000 // 3_600_000} h"


def data_of(event: Event) -> Mapping[str, Any]:
    """The event's data as a plain mapping, unknown fields included."""
    data = event.to_json()["data"]
    assert isinstance(data, dict)
    return data


def sentence(event: Event) -> str:
    """What `event` says, without time and source. Unknown types are quoted, not interpreted."""
    data = data_of(event)
    telling = _TELLING.get(event.type)
    if telling is None:
        return f"{event.type} (a type this version does not know)"
    try:
        return telling(data)
    except (KeyError, TypeError, ValueError):
        return f"{event.type} (fields this version cannot read)"


def plan_headline(plan: Plan) -> str:
    """One line for a plan: what it orders and from which step."""
    match plan.action:
        case "start":
            text = f"start generation {plan.to_generation} on {count(len(plan.assignments), 'node')}"
        case "restart":
            text = f"restart in place as generation {plan.to_generation}"
        case "replace":
            text = f"replace {listing(plan.cause.nodes)} in generation {plan.to_generation}"
        case "hold":
            text = f"hold generation {plan.from_generation} until a standby is free"
        case "halt":
            text = f"halt the run: {plan.reason}"
    if plan.checkpoint is not None and plan.action != "start":
        text += f" from step {plan.checkpoint.step:,} ({plan.checkpoint.trust})"
    return text


def _at_step(d: Mapping[str, Any]) -> str:
    return f" at step {d['step']:,}" if d.get("step") is not None else ""


def _exit(d: Mapping[str, Any]) -> str:
    who = ranks([d["rank"]] if d.get("rank") is not None else d.get("ranks") or [])
    error = d.get("error")
    how = _EXIT_WORDS.get(error["kind"], "ended") if error else "ended"
    if d.get("signal") is not None:
        how += f" by signal {d['signal']}"
    elif d.get("exit_code") is not None:
        how += f" (exit code {d['exit_code']})"
    kind = f": {error['type']}" if error and error.get("type") and d.get("signal") is None else ""
    return f"{who} on {d['node']} {how}{kind}{_at_step(d)}"


def _hung(d: Mapping[str, Any]) -> str:
    who = f"{ranks(d['ranks'])} made no progress" if d["ranks"] else "no rank makes progress, none is to blame"
    where = d.get("collective")
    call = f" in {where['op']} #{where['seq']} of group {where['group']}" if where else ""
    phase = f" in phase {d['phase']}" if d.get("phase") else ""
    return f"{who} for {duration(d['stalled_ms'])}{phase}{_at_step(d)}{call}"


def _checked(d: Mapping[str, Any]) -> str:
    blame = f", attributed to {ranks(d['ranks'])}" if d["ranks"] else ""
    return f"replay check '{d['recipe']}' of step {d['step']:,}: {d['verdict']}{blame}"


def _diverged(d: Mapping[str, Any]) -> str:
    who = f"{ranks(d['ranks'])} differ from their peers" if d["ranks"] else "peers differ and no majority exists"
    return f"state that must be equal is not at step {d['step']:,}: {who}"


def _loss(d: Mapping[str, Any]) -> str:
    return f"loss or gradient norm is not finite on {ranks(d['ranks'])} at step {d['step']:,}"


def _opened(d: Mapping[str, Any]) -> str:
    switches = [f"{name} {'on' if d[name] else 'off'}" for name in ("detection", "checkpointing")]
    return (
        f"run {d['run_id']} opened: {d['min_nodes']} to {d['max_nodes']} nodes of "
        f"{count(d['local_world_size'], 'rank')}, {', '.join(switches)}"
    )


_DEADLINES = {
    "settle": "the time for facts to settle was over",
    "confirm": "the wait for every node to answer was over",
    "start": "the time for every node to start its workers was over",
    "restore": "the time for training to resume was over",
    "hold": "the wait for a standby was over",
    "place": "the time for nodes to come back was over",
}


def _deadline(name: str) -> str:
    """`settle:2` in words, and its id."""
    said = _DEADLINES.get(name.partition(":")[0])
    return f"{said} (deadline {name})" if said else f"deadline {name} passed"


def _asked(d: Mapping[str, Any]) -> str:
    node = f" {d['node']}" if d.get("node") else ""
    return f"{d['by']} asked for {d['action']}{node}: {d['why']}"


def _restore_failed(d: Mapping[str, Any]) -> str:
    return (
        f"{d['node']} could not restore slot {d['slot']} of step {d['step']:,} "
        f"from {d['holder'] or 'durable storage'} ({d['tier']}): {d['why']}"
    )


def _slow(d: Mapping[str, Any]) -> str:
    return (
        f"rank {d['rank']} is {d['slowdown_pct']} % slower in {d['component']} "
        f"for {count(d['windows'], 'window')} in a row"
    )


def _desync(d: Mapping[str, Any]) -> str:
    who = ranks(d["ranks"]) if d["ranks"] else "no minority"
    return f"collectives out of step in group {d['group']} at #{d['collective_seq']}: {who}"


def _stalled(what: str, d: Mapping[str, Any]) -> str:
    return f"rank {d['rank']} waited {duration(d['stalled_ms'])} for {what}{_at_step(d)}"


def _fields(d: Mapping[str, Any]) -> Plan:
    return Plan.model_validate(d["plan"])


_TELLING: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "run_opened": _opened,
    "run_reopened": lambda d: f"run {d['run_id']} started again",
    "policy_changed": lambda d: f"{d['by']} changed the policy: {d['why']}",
    "node_joined": lambda d: f"{d['node']} joined (incarnation {d['incarnation']}, {d['address']})",
    "node_left": lambda d: f"{d['node']} left: {d['reason']}",
    "node_lost": lambda d: f"{d['node']} was lost: {d['reason']}",
    "node_confirmed": lambda d: f"{d['node']} answered a probe",
    "node_cordoned": lambda d: f"{d['by']} cordoned {d['node']}: {d['why']}",
    "node_uncordoned": lambda d: f"{d['by']} uncordoned {d['node']}: {d['why']}",
    "generation_started": lambda d: f"{d['node']} started its workers for generation {d['generation']}",
    "state_restored": lambda d: f"{d['node']} restored step {d['step']:,} from {d['tier']}",
    "restore_failed": _restore_failed,
    "training_resumed": lambda d: f"training resumed in generation {d['generation']} with step {d['step']:,}",
    "worker_exited": _exit,
    "workers_finished": lambda d: f"{d['node']} finished training",
    "rank_hung": _hung,
    "collective_desynced": _desync,
    "rank_slowed": _slow,
    "input_stalled": lambda d: _stalled("input", d),
    "checkpoint_stalled": lambda d: _stalled("its checkpoint", d),
    "replay_checked": _checked,
    "state_diverged": _diverged,
    "loss_diverged": _loss,
    "device_unhealthy": lambda d: f"device {d['device']} of {d['node']}: {d['severity']} {d['metric']}",
    "config_drifted": lambda d: f"{d['node']} differs from the others in {listing(d['keys'])}",
    "checkpoint_captured": lambda d: f"{d['node']} holds slot {d['slot']} of step {d['step']:,} in memory",
    "checkpoint_replicated": lambda d: (
        f"{d['holder']} holds a verified replica of slot {d['slot']}, step {d['step']:,}"
    ),
    "checkpoint_flushed": lambda d: f"{d['holder']} has slot {d['slot']} of step {d['step']:,} on disk",
    "checkpoint_persisted": lambda d: f"durable checkpoint {d['checkpoint_id']} of step {d['step']:,} is complete",
    "checkpoint_dropped": lambda d: (
        f"{d['holder']} dropped slot {d['slot']} of step {d['step']:,} ({d['tier']}): {d['why']}"
    ),
    "operator_requested": _asked,
    "deadline_passed": lambda d: _deadline(d["deadline"]),
    "plan_committed": lambda d: f"plan {d['plan']['plan_id'][:8]}: {plan_headline(_fields(d))}",
    "run_closed": lambda d: f"run closed, {d['outcome']}: {d['reason']}",
}
