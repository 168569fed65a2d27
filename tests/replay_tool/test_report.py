"""The report, in a real browser: it draws, explains, needs no network, works by keyboard, in the dark, and printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, chromium
from conftest import CORPUS, Replay
from pixels import colours
from stories import START_MS, Story

from lmr.engine import events as e
from lmr.replay_tool.jsonl import fact_line

needs_browser = pytest.mark.skipif(
    chromium() is None, reason="no Chromium here; `apt-get install chromium` brings one, and CI has it"
)


@pytest.fixture
def browser() -> Iterator[Browser]:
    path = chromium()
    assert path is not None
    with Browser(path) as opened:
        yield opened


@pytest.fixture
def page(tmp_path: Path, replay: Replay) -> Path:
    path = tmp_path / "incident.html"
    assert replay("report", CORPUS / "lemon-node.jsonl", "-o", path).code == 0
    return path


def test_the_page_is_one_file_that_loads_nothing(page: Path) -> None:
    """No address, no import, and a policy that forbids both."""
    text = page.read_text("utf-8")
    assert "default-src 'none'" in text
    body = text.replace("http://www.w3.org/2000/svg", "")
    for loading in ("http://", "https://", "src=", "@import", "url(h", "<link"):
        assert loading not in body
    assert "blamed" in text.partition("<noscript>")[0]


def test_standard_output_gets_the_same_page(page: Path) -> None:
    command = [sys.executable, "-m", "lmr.replay_tool.main", "report", str(CORPUS / "lemon-node.jsonl"), "-o", "-"]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert done.stdout == page.read_bytes()


def test_hostile_words_stay_words(tmp_path: Path, replay: Replay) -> None:
    """Names and reasons from the log are text on the page, never markup."""
    story = Story("<script>alert(1)</script>")
    story.capture(10)
    evil = '</script><img src=x onerror="alert(1)">'
    asked = e.OperatorRequested(request="r", action="restart", node=None, by=evil, why=evil)
    story.say(asked, "operator:mallory", after_ms=50)
    facts, page = tmp_path / "facts.jsonl", tmp_path / "page.html"
    facts.write_text("".join(fact_line(event) for event in story.facts), "utf-8")
    assert replay("report", facts, "-o", page).code == 0
    text = page.read_text("utf-8")
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert "&lt;img" in text


@needs_browser
def test_lanes_plans_and_events_are_drawn(page: Path, browser: Browser) -> None:
    """Six lanes, a mark a plan, the curve of steps, every fact in the list; nothing is fetched, nothing fails."""
    browser.open(page)
    data = browser.value("JSON.parse(document.getElementById('data').textContent)")
    assert browser.value("document.querySelectorAll('#lanes .plan').length") == len(data["plans"]) == 4
    assert browser.value("document.querySelectorAll('#lanes rect.active-a, #lanes rect.active-b').length") == 16
    assert browser.value("document.querySelectorAll('#lanes rect.quarantined').length") == 1
    assert browser.value("document.querySelectorAll('#lanes .fact').length") == 3
    assert browser.value("document.querySelectorAll('#rows tr').length") == len(data["facts"])
    assert browser.value("document.querySelector('#progress path').getAttribute('d').length") > 50
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("file:")] == []


@needs_browser
def test_a_plan_is_read_by_mouse_and_by_keyboard(page: Path, browser: Browser) -> None:
    """A click on a plan, and n, p, Enter and Escape, choose whose explanation is shown."""
    browser.open(page)
    chosen = "document.querySelector('article.chosen h3')?.textContent"
    ids = browser.value("[...document.querySelectorAll('#lanes .plan')].map(g => g.dataset.plan)")
    browser.click(f"#lanes [data-plan='{ids[3]}'] text")
    assert browser.value(chosen) == "Replace node-3 in generation 3 from step 30 (certified)"
    browser.key("p")
    assert browser.value(chosen) == "Restart in place as generation 2 from step 20 (certified)"
    browser.key("Escape")
    assert browser.value(chosen) is None
    browser.value(f"document.querySelector(\"#lanes [data-plan='{ids[1]}']\").focus()")
    browser.key("Enter")
    assert browser.value(chosen) == "Restart in place as generation 1 from step 10 (certified)"
    assert browser.value("document.activeElement.tagName") == "ARTICLE"
    browser.click("#incidents + table button[data-plan]")
    assert browser.value(chosen) == "Restart in place as generation 1 from step 10 (certified)"


@needs_browser
def test_zoom_and_search(page: Path, browser: Browser) -> None:
    """Zooming shows less time, 0 shows all again, an incident's number goes there; the search narrows the list."""
    browser.open(page)
    shown = "document.getElementById('range').textContent"
    whole = browser.value(shown)
    browser.key("+")
    assert browser.value(shown) != whole
    browser.key("0")
    assert browser.value(shown) == whole
    browser.click("#incidents + table button[data-from]")
    assert browser.value(shown) != whole
    browser.value("document.getElementById('filter').focus()")
    for letter in "signal 11":
        browser.key(letter)
    assert browser.value("document.querySelectorAll('#rows tr').length") == 3
    assert browser.value("document.getElementById('count').textContent") == "3 of 3 events"


@needs_browser
def test_dark_light_and_print(page: Path, browser: Browser) -> None:
    """Both themes paint their own page and bars; the choice of theme wins over the system; it prints."""
    light, dark = (255, 255, 255), (17, 22, 29)
    browser.open(page)
    seen = {}
    for name, on in (("light", False), ("dark", True)):
        browser.dark(on)
        shot = browser.screenshot()
        if os.environ.get("LMR_KEEP_SCREENSHOTS"):
            (Path(os.environ["LMR_KEEP_SCREENSHOTS"]) / f"report-{name}.png").write_bytes(shot)
        seen[name] = colours(shot)
    assert seen["light"].most_common(1)[0][0] == light
    assert seen["dark"].most_common(1)[0][0] == dark
    for name, bars in (("light", ((156, 197, 242), (110, 165, 224))), ("dark", ((35, 85, 140), (54, 116, 181)))):
        for bar in bars:
            assert seen[name][bar] > 50, f"{name}: bars of the lanes are not to be seen"
    browser.value(
        "(() => { const t = document.getElementById('theme'); t.value = 'light'; t.onchange({target: t}); })()"
    )
    assert browser.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.pdf().startswith(b"%PDF-")


def big_run(nodes: int, facts: int) -> list[e.Event]:
    """Many nodes, many facts, a loss every so often."""
    at_ms = START_MS
    events: list[e.Event] = []

    def say(data: e.Data, source: str, after_ms: int = 1) -> None:
        nonlocal at_ms
        at_ms += after_ms
        events.append(e.Event.of(data, at_ms=at_ms, source=source))

    active = [f"gpu-{number:04d}" for number in range(nodes - 100)]
    spare = [f"gpu-{number:04d}" for number in range(nodes - 100, nodes)]
    size = {"min_nodes": len(active), "max_nodes": nodes, "local_world_size": 8}
    say(e.RunOpened(run_id="big", **size, detection=True, checkpointing=True, policy={}), "decider")
    for name in active + spare:
        say(e.NodeJoined(node=name, incarnation=name, address=name, failure_domain=f"r{name[-2:]}"), name)
    for name in active:
        say(e.GenerationStarted(generation=0, node=name), name)
    number = 0
    while len(events) < facts:
        warning = e.DeviceUnhealthy(node=active[number % 900], device="gpu:0", metric="xid_63", severity="warning")
        say(warning, active[number % 900], 2_000)
        number += 1
    lost = active[17]
    say(e.NodeLost(node=lost, incarnation=lost, reason="lease_expired"), "decider", 1_000)
    return events


@needs_browser
def test_ten_thousand_events_and_two_thousand_nodes(tmp_path: Path, replay: Replay, browser: Browser) -> None:
    """A large run draws at once: equal nodes share a lane, and one lane a node can be had."""
    facts, page = tmp_path / "big.jsonl", tmp_path / "big.html"
    facts.write_text("".join(fact_line(event) for event in big_run(2_000, 10_000)), "utf-8")
    ran = replay("report", facts, "-o", page, "--json")
    assert (ran.json["nodes"], ran.json["plans"]) == (2_000, 2)
    assert ran.json["events"] > 10_000
    assert ran.json["bytes"] < 4_000_000
    browser.open(page)
    lanes = browser.value("document.getElementById('range').textContent")
    assert lanes.endswith("lanes for 2000 nodes")
    assert int(lanes.rpartition(", ")[2].split()[0]) < 200
    started = browser.value("performance.now()")
    browser.click("#every")
    taken_ms = browser.value("performance.now()") - started
    assert browser.value("document.getElementById('range').textContent").endswith("2000 lanes for 2000 nodes")
    assert taken_ms < 5_000
    assert browser.value("document.querySelectorAll('#rows tr').length") == 500
    assert browser.errors == []


def test_report_answers_in_json(tmp_path: Path, replay: Replay) -> None:
    ran = replay("report", CORPUS / "hang.jsonl", "-o", tmp_path / "x.html", "--json")
    assert json.loads(ran.out)["incidents"] == 2
