"""The page: static prose that reads without scripts, and a data block from which `lanes.js` draws.

It may run what is in it and load nothing (its content security policy says so): a report can be opened from mail.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from lmr import __version__
from lmr.replay_tool.errors import Usage
from lmr.replay_tool.moment import since, utc
from lmr.replay_tool.report.content import Content, gather
from lmr.replay_tool.sentences import count, duration, listing
from lmr.replay_tool.source import Log
from lmr.replay_tool.verbs.explain import Explanation
from lmr.replay_tool.verbs.timeline import IncidentLine


@dataclass(frozen=True)
class Report:
    """A written report."""

    output: str
    bytes: int
    run_id: str
    incidents: int
    plans: int
    nodes: int
    events: int

    @property
    def text(self) -> str:
        """One line for people."""
        return (
            f"{self.output}: run {self.run_id}, {count(self.incidents, 'incident')}, {count(self.plans, 'plan')}, "
            f"{count(self.nodes, 'node')}, {self.bytes / 1024:,.0f} KiB"
        )


def write_report(log: Log, output: Path) -> Report:
    """Writes the report of `log` to `output`; `-` is standard output.

    Raises:
        Usage: the file cannot be written.
    """
    content = gather(log)
    page = render(content).encode("utf-8")
    if str(output) == "-":
        sys.stdout.buffer.write(page)
    else:
        try:
            output.write_bytes(page)
        except OSError as error:
            raise Usage(f"{output}: cannot be written: {(error.strerror or str(error)).lower()}") from error
    history = content.history
    return Report(
        str(output), len(page), history.run_id, len(history.incidents), len(history.plans), len(history.nodes),
        sum(history.counts.values()),
    )  # fmt: skip


def render(content: Content) -> str:
    """The whole page."""
    history = content.history
    folder = files("lmr.replay_tool.report")
    page, style, script = (folder.joinpath(name).read_text("utf-8") for name in ("page.html", "style.css", "lanes.js"))
    ending = f"closed, {history.outcome}: {history.outcome_reason}" if history.outcome else "not closed"
    # `</script>` inside a string would end the data block: no `<` is written as itself.
    data = json.dumps(content.data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template(page).substitute(
        version=__version__,
        title=escape(f"Run {history.run_id}"),
        style=style,
        span=escape(f"{utc(history.start_ms)} to {utc(history.end_ms)} · {ending}"),
        notes=_notes(content),
        figures=_figures(content),
        legend=_legend(),
        incidents=_incidents(content),
        plans="".join(_article(item) for item in content.explanations) or "<p>No plan was committed.</p>",
        where=escape(content.where),
        data=data,
        script=script,
    )


def _notes(content: Content) -> str:
    notes = list(content.notes)
    notes += [f"{count(n, 'event')} of the unknown type {name!r}" for name, n in content.history.unknown_types.items()]
    missing = len(content.history.plans) - len(content.explanations)
    if missing:
        notes.append(f"{count(missing, 'plan')} more are in the log and not told here")
    return "".join(f'<p class="quiet">Note: {escape(note)}.</p>' for note in notes)


def _figures(content: Content) -> str:
    history = content.history
    times = [item.lengths_ms["total"] for item in content.incidents if "total" in item.lengths_ms]
    middle = duration(sorted(times)[len(times) // 2]) if times else "–"
    figures = (
        (f"{len(history.incidents)}", "incidents"),
        (f"{sum(item.lost_steps for item in content.incidents):,}", "steps lost"),
        (f"{sum(item.standbys_used for item in content.incidents)}", "standbys used"),
        (middle, "median detected to resumed"),
        (f"{len(history.generations)}", "generations"),
        (f"{len(history.nodes):,}", "nodes"),
        (f"{sum(history.counts.values()):,}", "records"),
        (duration(history.end_ms - history.start_ms), "from first to last record"),
    )
    items = "".join(f"<li><b>{escape(value)}</b>{escape(name)}</li>" for value, name in figures)
    return f'<ul class="figures">{items}</ul>'


def _legend() -> str:
    kinds = (
        ("active-a", "active, even generation"), ("active-b", "active, odd generation"), ("standby", "standby"),
        ("quarantined", "quarantined (hatched)"), ("cordoned", "cordoned"),
    )  # fmt: skip
    items = "".join(f'<span><i style="background: var(--{name})"></i>{text}</span>' for name, text in kinds)
    marks = '<span><span class="dot">●</span> failure seen on the node</span><span>│ plan, dashed: hold or halt</span>'
    return f'<div class="legend">{items}{marks}</div>'


def _incidents(content: Content) -> str:
    if not content.incidents:
        return "<p>No incident.</p>"
    start = content.history.start_ms
    rows = "".join(_incident_row(item, start) for item in content.incidents)
    heads = ("incident", "#detected", "cause", "blamed", "plans", "#to decision", "#to first step", "#steps lost")
    cells = [f'<th class="number">{head[1:]}</th>' if head.startswith("#") else f"<th>{head}</th>" for head in heads]
    return f"<table><thead><tr>{''.join(cells)}</tr></thead><tbody>{rows}</tbody></table>"


def _incident_row(item: IncidentLine, start_ms: int) -> str:
    plans = "<br>".join(
        f'<button class="link" data-plan="{plan.plan_id}">{escape(plan.headline)}</button>' for plan in item.plans
    )
    known = [value for value in item.times_ms.values() if value is not None]
    detected = item.times_ms["detected_ms"] or item.plans[0].at_ms
    around = max(1_000, (max(known) - min(known)) // 4) if known else 1_000
    zoom = f'data-from="{min(known) - around}" data-to="{max(known) + around}"' if known else ""
    decision = item.plans[0].at_ms - detected
    return (
        f'<tr><td><button class="link" {zoom} title="Show in the drawing">{item.incident}</button></td>'
        f'<td class="number">{since(start_ms, detected)}</td><td>{escape(item.cause)} ({item.confidence})</td>'
        f"<td>{escape(listing(item.nodes) if item.nodes else 'nobody')}</td><td>{plans}</td>"
        f'<td class="number">{duration(decision)}</td><td class="number">{duration(item.lengths_ms.get("total"))}</td>'
        f'<td class="number">{item.lost_steps:,}</td></tr>'
    )


def _article(item: Explanation) -> str:
    facts = [f"seq {f.seq} at {since(item.start_ms, f.at_ms)}, from {f.source}: {f.text}." for f in item.facts]
    state = [
        item.state,
        *([f"Read: {'; '.join(item.sources)}."] if item.sources and item.plan.action != "start" else []),
    ]
    rejected = [f"Not {r.option}: {r.text}{_seqs(r.evidence)}." for r in item.rejected]
    why = [item.blamed, item.rule, *([item.economics] if item.economics else [])]
    parts = "".join((
        _section("Why", why),
        _section("Facts it rests on", facts, bullets=True),
        _section("Who runs now", item.placement),
        _section("State", state),
        _section("What was not done", rejected, bullets=True),
    ))  # fmt: skip
    title = escape(item.headline[0].upper() + item.headline[1:])
    place = (
        f"{since(item.start_ms, item.at_ms)} ({utc(item.at_ms)}), seq {item.seq}, plan {item.plan_id[:12]}, "
        f"decided through seq {item.decided_through}, policy {item.policy_digest[:12]}, engine {item.engine}"
    )
    return (
        f'<article id="plan-{item.plan_id}" tabindex="-1"><h3>{title}</h3>'
        f'<p class="quiet">{escape(place)}</p>{parts}</article>'
    )


def _section(title: str, lines: list[str] | tuple[str, ...], *, bullets: bool = False) -> str:
    if not lines:
        return ""
    if bullets:
        body = "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
    else:
        body = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"<h4>{title}</h4>{body}"


def _seqs(seqs: tuple[int, ...]) -> str:
    return f" (seq {', '.join(str(seq) for seq in seqs)})" if seqs else ""
