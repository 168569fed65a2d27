"""Every decision scenario of the engine, decided into a log, goes through every verb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import HERE, Replay

from lmr.engine.events import DECISIONS
from lmr.engine.events import Event as Fact
from lmr.engine.offline import run_facts
from lmr.engine.record import Record
from lmr.replay_tool.history import fold
from lmr.replay_tool.report.content import gather
from lmr.replay_tool.report.page import render
from lmr.replay_tool.source import Log
from lmr.replay_tool.trace import as_json, as_protobuf
from lmr.replay_tool.verbs.bisect import bisect
from lmr.replay_tool.verbs.explain import explain_all
from lmr.replay_tool.verbs.state import state
from lmr.replay_tool.verbs.timeline import timeline
from lmr.replay_tool.verbs.verify import verify
from lmr.replay_tool.verbs.whatif import whatif
from lmr.replay_tool.verbs.why_not import why_not

SCENARIOS = sorted((HERE.parent / "scenarios").glob("*.case"))


def log_of(path: Path) -> Log:
    lines = [line for line in path.read_text("utf-8").splitlines() if line.startswith("{")]
    facts = [Fact.parse(json.loads(line)) for line in lines]
    records: list[Record] = [record for _, record in run_facts(facts)]
    return Log(str(path), "records", records[0].run_id, _read=lambda after: iter(records[after:]))


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 100


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_verb_can_tell_it(path: Path) -> None:
    """It verifies; nothing changes without a change; every plan is told in known words; page and trace can be made."""
    log = log_of(path)
    found = verify(log)
    assert found.faults == []
    same = whatif(log)
    assert same.change is None
    assert same.same == same.decisions == found.decisions
    history = fold(log.records())
    assert len(history.plans) + (history.outcome is not None) == found.decisions
    told = list(explain_all(log, limit=1_000))
    assert len(told) == len(history.plans)
    for item in told:
        assert not [one for one in item.rejected if "does not know" in one.text]
        assert item.plan.action == "start" or item.facts
    assert timeline(log).lost_steps >= 0
    assert state(log).seq == found.records
    assert render(gather(log)).endswith("</html>\n")
    assert json.loads("".join(as_json(history)))["traceEvents"]
    assert all(as_protobuf(history))


@pytest.mark.long
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_plan_can_be_taken_apart(path: Path) -> None:
    """Each plan can be bisected and asked about each action, each node and each of its steps."""
    log = log_of(path)
    for item in explain_all(log, limit=1_000):
        found = bisect(log, item.plan_id, limit=500)
        assert found.replays <= 1_001
        nodes = {assignment.node for assignment in item.plan.assignments} | set(item.plan.standby)
        for option in ("restart", "replace", "hold", "halt", "start", "step=10", "step=0", *sorted(nodes)):
            assert why_not(log, item, option).answer


def test_decide_agrees_with_the_scenarios(tmp_path: Path, replay: Replay) -> None:
    """`decide --json` prints one line for each decision of the log that --into writes, in the same order."""
    for path in SCENARIOS[::25]:
        facts = tmp_path / "facts.jsonl"
        facts.write_text("\n".join(line for line in path.read_text("utf-8").splitlines() if not line.startswith("=>")))
        ran = replay("decide", facts, "--json", "--into", tmp_path / f"{path.stem}.db")
        assert ran.code == 0, ran.err
        written = [json.loads(line) for line in ran.out.splitlines()]
        types = [record.event.type for record in log_of(path).records() if record.event.type in DECISIONS]
        assert [line["type"] for line in written] == types
