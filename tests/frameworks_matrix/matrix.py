"""What the tests have shown, and the table in docs/frameworks.md that is made from it.

    python tests/frameworks_matrix/matrix.py        write the table from .venv-frameworks/matrix.jsonl

Each test leaves a line: {"mode", "shown", "version", ...}; the newest line of a mode and of what was shown counts.
"""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from modes import MODES, Mode

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / ".venv-frameworks" / "matrix.jsonl"
DOCUMENT = ROOT / "docs" / "frameworks.md"
BEGIN, END = "<!-- made by `make test-frameworks` -->", "<!-- end of what is made -->"
DISTRIBUTIONS = {
    "PyTorch": "torch",
    "DeepSpeed": "deepspeed",
    "Megatron Core": "megatron-core",
    "TorchTitan": "torchtitan",
    "Hugging Face Trainer": "transformers",
    "Accelerate": "accelerate",
    "Lightning": "lightning",
}
SHOWN = ("rank killed", "machine lost", "rank stopped", "rank corrupted", "all memory lost")
"""Disturbances: a column each. Its cells say that the end was equal, or how SCOUT named the rank and it was equal."""
HEAD = ("framework", "mode", "attaches at", "peers compared", *SHOWN, "on")


class NotShown(Exception):
    """The record lacks a mode."""


def note(mode: str, shown: dict[str, str], **more: Any) -> None:
    """Leave a line, if the run wants a record: `LMR_MATRIX` names the file.

    Args:
        mode: a name in `MODES`.
        shown: for each disturbance what followed.
        more: what else is worth keeping.
    """
    where = os.environ.get("LMR_MATRIX")
    if where:
        distribution = DISTRIBUTIONS.get(MODES[mode].framework)
        version = metadata.version(distribution).partition("+")[0] if distribution else ""
        line = {"mode": mode, "shown": shown, "version": version, **more}
        with Path(where).open("a") as lines:
            lines.write(json.dumps(line) + "\n")


def rows(record: Path) -> list[tuple[str, ...]]:
    """The rows of the table, in the order of `MODES`.

    Raises:
        NotShown: a mode is missing in the record.
    """
    shown: dict[str, dict[str, str]] = {}
    versions: dict[str, str] = {}
    for text in record.read_text().splitlines():
        line = json.loads(text)
        shown.setdefault(line["mode"], {}).update(line["shown"])
        versions[line["mode"]] = line["version"]
    missing = [name for name in MODES if name not in shown]
    if missing:
        raise NotShown(", ".join(missing))
    return [_row(mode, versions[name], shown[name]) for name, mode in MODES.items()]


def _row(mode: Mode, version: str, shown: dict[str, str]) -> tuple[str, ...]:
    framework = f"{mode.framework} {version}".strip()
    cells = [shown.get(disturbance, "") for disturbance in SHOWN]
    return (framework, mode.name, mode.attaches, mode.peers, *cells, "CPU by a shim" if mode.shim else "CPU")


def render(found: list[tuple[str, ...]]) -> str:
    """The table as it stands in the document, markers included."""
    lines = [BEGIN, _line(HEAD), _line(("---",) * len(HEAD)), *map(_line, found), END]
    return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def parse(document: str) -> list[tuple[str, ...]]:
    """The rows of the table that stands in a document."""
    block = document.split(BEGIN, 1)[1].split(END, 1)[0].strip().splitlines()
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in block[2:]]


def write() -> bool:
    """Bring the document up to date; whether that changed it."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    new = before + render(rows(RECORD)) + after
    if new != text:
        DOCUMENT.write_text(new)
    return new != text


if __name__ == "__main__":
    print("changed" if write() else "as it was")
