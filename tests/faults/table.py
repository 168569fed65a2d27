"""The table of docs/faults.md, written by the run itself: `python tests/faults/table.py [GROUP ...]`."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cases import GROUPS, Case
from measuring import hurt, measure

HERE = Path(__file__).parent
MEASURED = HERE / "measured.json"
DOCS = HERE.parents[1] / "docs" / "faults.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
HEAD = (
    "| effect | without recovery | detected by | named | right | wrong | plan | detected | decided | trains again "
    "| steps lost | same result |"
)


def render(measured: dict) -> str:
    """The table as it stands in the docs, for what was measured."""
    rows = [_row(case, measured) for group in GROUPS for case in group.cases]
    lines = [HEAD, "|---|---|---|---|---|---|---|---|---|---|---|---|", *rows]
    loads = [outcome["load"] for outcome in measured["outcomes"].values()]
    said = (
        f"Measured on {measured['machine']} with torch {measured['torch']}, while other work took most of them: load "
    )
    return "\n".join([*lines, "", f"{said}{min(loads)} to {max(loads)}."])


def _row(case: Case, measured: dict) -> str:
    outcome = measured["outcomes"].get(case.name)
    if outcome is None:
        return f"| {case.name} | not measured yet |" + " - |" * 10

    def ms(name: str) -> str:
        return "-" if outcome[name] is None else f"{outcome[name]:,} ms"

    named = ", ".join(outcome["named"]) or (f"nobody: {case.note}" if outcome["detected"] else "-")
    cells = [
        case.name,
        measured["hurt"].get(case.name, "not measured yet"),
        f"`{outcome['detected']}`" if outcome["detected"] else f"**not seen**: {case.note}",
        named,
        "yes" if outcome["right"] else "no",
        str(outcome["wrong"]),
        f"{outcome['action']} ({outcome['cause']})" if outcome["action"] else "none",
        ms("detect_ms"),
        ms("decide_ms"),
        ms("resume_ms"),
        "-" if outcome["steps_lost"] is None else str(outcome["steps_lost"]),
        "yes" if outcome["equal"] else "**no**",
    ]
    return f"| {' | '.join(cells)} |"


def write(measured: dict) -> None:
    """Keep what was measured, and put the table into the docs."""
    MEASURED.write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n")
    text = DOCS.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCS.write_text(f"{before}{BEGIN}\n{render(measured)}\n{END}{after}")


def main(wanted: list[str]) -> None:
    """Measure the groups named, or all; what was not measured now keeps what it had.

    What a fault does without us is measured once: remove it from the record to see it again.
    """
    measured = json.loads(MEASURED.read_text())
    with tempfile.TemporaryDirectory(prefix="lmr-faults-") as name:
        for group in GROUPS:
            if wanted and group.name not in wanted:
                continue
            for outcome in measure(group, Path(name)):
                print(json.dumps(asdict(outcome)), flush=True)
                measured["outcomes"][outcome.name] = {**asdict(outcome), "load": round(os.getloadavg()[1])}
            measured["machine"] = f"{os.cpu_count()} shared cores ({platform.machine()})"
            measured["torch"] = metadata.version("torch").partition("+")[0]
            write(measured)
            for case in group.cases:
                if case.name not in measured["hurt"]:
                    measured["hurt"][case.name] = hurt(case, group, Path(name))
                    write(measured)
                    print(case.name, measured["hurt"][case.name], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
