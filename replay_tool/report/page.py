"""The page: static prose that reads without scripts, and a data block from which `lanes.js` draws."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from lmr import __version__
from lmr.replay_tool.errors import Usage
from lmr.replay_tool.moment import since, utc
from lmr.replay_tool.report.content import Content, gather
from lmr.replay_tool.sentences import count, duration, listing
from lmr.replay_tool.source import Log
from lmr.replay_tool.verbs.explain import Explanation
from lmr.replay_tool.verbs.timeline import IncidentLine

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The page may run what is in it and load nothing: a report can be opened from mail."""


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
    """Writes the report of `log` to `output`.

    Raises:
        Usage: the file cannot be written.
    """
    content = gather(log)
    page = render(content).encode("utf-8")
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
    style, script = (folder.joinpath(name).read_text("utf-8") for name in ("style.css", "lanes.js"))
    title = f"Run {history.run_id}"
    # `</script>` inside a string would end the data block: no `<` is written as itself.
    block = json.dumps(content.data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    ending = f"closed, {history.outcome}: {history.outcome_reason}" if history.outcome else "not closed"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="lmr-replay {__version__}">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#incidents">Skip the drawing</a>
<header>
<h1>{escape(title)}</h1>
<span class="quiet">{utc(history.start_ms)} to {utc(history.end_ms)} · {escape(ending)}</span>
<label class="bar quiet">theme <select id="theme"><option value="">system</option><option>light</option><option>dark</option></select></label>
</header>
<main>
{_notes(content)}
{_figures(content)}
<h2>Nodes over time</h2>
<div class="bar">
<button id="in" title="Zoom in (+)">+</button> <button id="out" title="Zoom out (-)">−</button>
<button id="back" title="Earlier ([)">←</button> <button id="forth" title="Later (])">→</button>
<button id="whole" title="Whole run (0)">whole run</button>
<label><input type="checkbox" id="every"> one lane a node</label>
<span class="quiet" id="range"></span>
</div>
{_legend()}
<div id="lanes" tabindex="0" aria-label="Swim lanes of nodes"></div>
<h2>Progress</h2>
<div id="progress"></div>
<h2 id="incidents">Incidents</h2>
{_incidents(content)}
<h2>Plans</h2>
<p class="quiet">Keys: n and p for the next and previous plan, + − 0 to zoom, [ ] to move, / to search events.</p>
{''.join(_article(item) for item in content.explanations) or '<p>No plan was committed.</p>'}
<h2>Events</h2>
<div class="bar"><label>search <input id="filter" type="search" placeholder="node, type, seq or word"></label>
<span class="quiet" id="count"></span> <button id="more">show more</button></div>
<div id="events" tabindex="0" aria-label="Events"><table><thead><tr><th class="number">seq</th><th class="number">time</th><th>type</th><th>what</th></tr></thead>
<tbody id="rows"></tbody></table></div>
<p class="quiet">Made by lmr-replay {__version__} from {escape(content.where)}. Checkpoint facts and clean checks are counted, not listed.</p>
</main>
<noscript><p>The drawing and the event list need scripts; incidents and plans are told above without them.</p></noscript>
<script type="application/json" id="data">{block}</script>
<script>
{script}</script>
</body>
</html>
"""


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
    return f'<div class="legend">{items}<span>● failure seen on the node</span><span>│ plan, dashed: hold or halt</span></div>'


def _incidents(content: Content) -> str:
    if not content.incidents:
        return "<p>No incident.</p>"
    start = content.history.start_ms
    rows = "".join(_incident_row(item, start) for item in content.incidents)
    return (
        "<table><thead><tr><th>incident</th><th class='number'>detected</th><th>cause</th><th>blamed</th><th>plans</th>"
        "<th class='number'>to decision</th><th class='number'>to first step</th><th class='number'>steps lost</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


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
    state = [item.state, *([f"Read: {'; '.join(item.sources)}."] if item.sources and item.plan.action != "start" else [])]
    rejected = [f"Not {r.option}: {r.text}{_seqs(r.evidence)}." for r in item.rejected]
    why = [item.blamed, item.rule, *([item.economics] if item.economics else [])]
    parts = "".join((
        _section("Why", why),
        _section("Facts it rests on", facts, bullets=True),
        _section("Who runs now", item.placement),
        _section("State", state),
        _section("What was not done", rejected, bullets=True),
    ))  # fmt: skip
    return (
        f'<article id="plan-{item.plan_id}" tabindex="-1"><h3>{escape(item.headline[0].upper() + item.headline[1:])}</h3>'
        f'<p class="quiet">{since(item.start_ms, item.at_ms)} ({utc(item.at_ms)}), seq {item.seq}, plan {item.plan_id[:12]}, '
        f"decided through seq {item.decided_through}, policy {item.policy_digest[:12]}, engine {escape(item.engine)}</p>"
        f"{parts}</article>"
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
