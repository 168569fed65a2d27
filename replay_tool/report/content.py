"""What the report shows, gathered from a log: the data block for the drawing, and an explanation for each plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmr.replay_tool.history import History, fold
from lmr.replay_tool.sentences import count
from lmr.replay_tool.source import Log
from lmr.replay_tool.verbs.explain import Explanation, explain_all
from lmr.replay_tool.verbs.timeline import IncidentLine, incident_line

FAILURES = frozenset({
    "node_lost", "node_left", "device_unhealthy", "worker_exited", "rank_hung", "collective_desynced", "rank_slowed",
    "input_stalled", "checkpoint_stalled", "replay_checked", "state_diverged", "loss_diverged", "restore_failed",
    "config_drifted",
})  # fmt: skip
"""Types drawn as a mark on the lane of the node they name."""
MOST_POINTS = 2_000
"""Points of the progress curve; more than a screen has pixels would only weigh."""
MOST_PLANS = 400
"""Plans that are told in full; a run that recovers more often halts by its budget long before."""


@dataclass(frozen=True)
class Content:
    """Everything on the page."""

    history: History
    incidents: tuple[IncidentLine, ...]
    explanations: tuple[Explanation, ...]
    notes: tuple[str, ...]
    where: str
    data: dict[str, Any]


def gather(log: Log) -> Content:
    """Reads `log` and gathers the page's content."""
    history = fold(log.records())
    explanations = tuple(explain_all(log, limit=MOST_PLANS))
    incidents = tuple(incident_line(item) for item in history.incidents)
    return Content(history, incidents, explanations, log.notes, log.where, _data(history, explanations))


def _data(history: History, explanations: tuple[Explanation, ...]) -> dict[str, Any]:
    names = {name: index for index, name in enumerate(history.nodes)}
    types = sorted({fact.type for fact in history.facts})
    type_index = {name: index for index, name in enumerate(types)}
    lost, points = _lost(history), _thinned(history.progress)
    # Some room behind the last record, so that what it began can be seen.
    margin = max(1, (history.end_ms - history.start_ms) // 25) if history.outcome is None else 0
    return {
        "start": history.start_ms,
        "end": history.end_ms + margin,
        "nodes": [
            [node.name, [[s.role, s.from_ms, s.to_ms, s.generation, s.slot] for s in node.spans]]
            for node in history.nodes.values()
        ],
        "blamed": [names[name] for name, node in history.nodes.items() if node.incidents],
        "types": types,
        "failures": [type_index[name] for name in types if name in FAILURES],
        "facts": [
            [f.seq, f.at_ms, type_index[f.type], f.text, [names[n] for n in f.nodes if n in names]]
            for f in history.facts
        ],
        "plans": [
            {"id": item.plan_id, "at": item.at_ms, "action": item.plan.action, "headline": item.headline}
            for item in explanations
        ],
        "progress": points,
        "lost": lost,
        "progressText": _progress_text(history),
    }


def _lost(history: History) -> list[dict[str, int]]:
    found = []
    for decided in history.plans:
        checkpoint = decided.plan.checkpoint
        if checkpoint is not None and checkpoint.lost_steps:
            found.append({"at": decided.at_ms, "low": checkpoint.step, "high": checkpoint.step + checkpoint.lost_steps})
    return found


def _thinned(points: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    if len(points) <= MOST_POINTS:
        return points
    every = -(-len(points) // MOST_POINTS)
    turns = {i for i in range(1, len(points)) if points[i][1] != points[i - 1][1]}
    kept = turns | {i - 1 for i in turns}
    return [point for i, point in enumerate(points) if not i % every or i in kept or i == len(points) - 1]


def _progress_text(history: History) -> str:
    last = history.progress[-1][2] if history.progress else 0
    lost = sum(item["high"] - item["low"] for item in _lost(history))
    incidents = count(len(history.incidents), "incident")
    return f"Training step over time: reaches step {last}, {count(lost, 'step')} lost in {incidents}"
