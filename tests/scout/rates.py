"""Precision and recall over seeded streams: `python tests/scout/rates.py [simulated] [recorded]`.

Plays every stream with the default thresholds, keeps what came of them in `rates.json`, and writes the tables of
docs/scout.md from that record.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmr.engine.events import EventData
from lmr.integrations.scout.page import Phase

sys.path.insert(0, str(Path(__file__).parent))
import recorded
import streams
from playing import play
from recorded import Stream

HERE = Path(__file__).parent
RECORD = HERE / "rates.json"
DOCS = HERE.parents[1] / "docs" / "scout.md"
EXPECTED = {
    "absent": ("rank_hung", "collective never entered"),
    "desync": ("collective_desynced", "other collective called"),
    "hang": ("rank_hung", "hang in forward or backward"),
    "input": ("input_stalled", "batch never comes"),
    "nan": ("loss_diverged", "loss not finite"),
    "slow": ("rank_slowed", "rank that makes steps 30 to 150 percent longer"),
    "stop": ("rank_hung", "stopped process"),
}
KINDS = sorted(EXPECTED)
CLEAN_STREAMS = 300
FAULTY_STREAMS = 301
FIRST_SEED = 1_000
"""Streams below it were looked at while detectors and recordings were made; these were not."""


def _simulated_clean(seed: int) -> Stream:
    rnd = random.Random(f"clean {seed}")
    made = streams.Stream(
        seed, world=rnd.choice((4, 8)), step_ms=rnd.choice((50, 200, 400)), noise=rnd.choice((0.02, 0.05, 0.15))
    )
    return Stream(made.world, made.messages())


def _simulated_faulty(seed: int) -> Stream:
    rnd = random.Random(f"faulty {seed}")
    kind = KINDS[seed % len(KINDS)]
    world = rnd.choice((4, 8))
    step_ms = rnd.choice((200, 400))
    phases = (Phase.FORWARD, Phase.BACKWARD)
    fault = streams.Fault(kind, rnd.randrange(world), rnd.randrange(5, 40), rnd.uniform(0.3, 1.5), rnd.choice(phases))
    made = streams.Stream(
        seed, world=world, step_ms=step_ms, noise=rnd.choice((0.02, 0.05)), fault=fault, until_ms=300_000
    )
    return Stream(world, made.messages(), kind, fault.rank)


SOURCES: dict[str, tuple[Callable[[int], Stream], Callable[[int], Stream]]] = {
    "simulated": (_simulated_faulty, _simulated_clean),
    "recorded": (lambda seed: recorded.faulty(seed, KINDS), recorded.clean),
}
"""How a stream with a fault, and one without, is made from a seed."""


def blamed(fact: EventData) -> tuple[int, ...]:
    """The ranks a fact names."""
    ranks = getattr(fact, "ranks", None)
    return ranks if ranks is not None else (fact.rank,)  # type: ignore[attr-defined]


def judge(stream: Stream) -> tuple[bool, bool]:
    """Whether the fault was found with its rank, and whether anybody else was accused."""
    facts = play(stream.messages, stream.world)
    right = any(f.type == EXPECTED[stream.kind][0] and blamed(f) == (stream.rank,) for f in facts)
    return right, any(set(blamed(f)) - {stream.rank} for f in facts)


def measure(source: str) -> dict[str, Any]:
    """What came of every stream of a source: by kind, and the seeds that went wrong."""
    faulty, clean = SOURCES[source]
    of: Counter[str] = Counter()
    missed: dict[str, list[int]] = {kind: [] for kind in KINDS}
    accused: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for seed in range(FIRST_SEED, FIRST_SEED + FAULTY_STREAMS):
        stream = faulty(seed)
        right, wrong = judge(stream)
        of[stream.kind] += 1
        missed[stream.kind] += [] if right else [seed]
        accused[stream.kind] += [seed] if wrong else []
    alarms = []
    for seed in range(FIRST_SEED, FIRST_SEED + CLEAN_STREAMS):
        stream = clean(seed)
        alarms += [seed] if play(stream.messages, stream.world) else []
    return {"of": dict(of), "missed": missed, "accused": accused, "clean": CLEAN_STREAMS, "false_alarms": alarms}


# What is said of it --------------------------------------------------------------------------------------------------


def render(source: str, found: dict[str, Any]) -> str:
    """The table as it stands in the docs."""
    of = found["of"]
    total = sum(of.values())
    missed = sum(map(len, found["missed"].values()))
    accused = sum(map(len, found["accused"].values()))
    alarms = len(found["false_alarms"])
    right = total - missed
    made = right + accused + alarms
    lines = [f"| {source} streams | found, right rank | anybody else accused |", "|---|---|---|"]
    lines += [
        f"| {EXPECTED[kind][1]} | {count - len(found['missed'][kind])} of {count} | {len(found['accused'][kind])} |"
        for kind, count in sorted(of.items())
    ]
    lines += [
        f"| **{total} with a fault** | **{right}** | **{accused}** |",
        f"| **{found['clean']} without** | | **{alarms}** |",
        "",
        "| rate | of these streams | 95 % interval |",
        "|---|---|---|",
        f"| recall: faults found with the right rank | {right} of {total} | {said(right, total)} |",
        f"| precision: accusations that were right | {right} of {made} | {said(right, made)} |",
        f"| faults for which anybody else was accused | {accused} of {total} | {said(accused, total)} |",
        f"| false alarms without a fault | {alarms} of {found['clean']} | {said(alarms, found['clean'])} |",
    ]
    return "\n".join(lines)


def said(count: int, of: int) -> str:
    """A rate with its 95 % interval."""
    low, high = interval(count, of)
    return f"{100 * count / of:.1f} % ({100 * low:.1f} to {100 * high:.1f} %)"


def interval(count: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a rate after Clopper and Pearson (Biometrika 26, 1934)."""

    def at_most(k: int, p: float) -> float:
        return sum(math.comb(of, i) * p**i * (1 - p) ** (of - i) for i in range(k + 1))

    def solve(holds: Callable[[float], bool]) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

    lower = 0.0 if count == 0 else solve(lambda p: 1 - at_most(count - 1, p) < 0.025)
    upper = 1.0 if count == of else solve(lambda p: at_most(count, p) > 0.025)
    return lower, upper


def marked(source: str) -> tuple[str, str]:
    """Between which lines of the docs the table of a source stands."""
    return f"<!-- {source} rates: begin -->", f"<!-- {source} rates: end -->"


def main(wanted: list[str]) -> None:
    """Play the sources named, or all; keep the record and write the docs after each."""
    for source in wanted or SOURCES:
        found = measure(source)
        print(render(source, found), flush=True)
        record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        RECORD.write_text(json.dumps({**record, source: found}, indent=1, sort_keys=True) + "\n")
        begin, end = marked(source)
        before, _, rest = DOCS.read_text().partition(begin)
        DOCS.write_text(f"{before}{begin}\n{render(source, found)}\n{end}{rest.partition(end)[2]}")


if __name__ == "__main__":
    main(sys.argv[1:])
