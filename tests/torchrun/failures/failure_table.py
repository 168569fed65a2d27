"""Which failures were shown in which ways to train, and the table in docs/state.md that is made from it.

LMR_SHOWN=1 pytest tests/torchrun/failures      each test that passes leaves its cells in shown.json
python tests/torchrun/failures/failure_table.py         writes the table from it
"""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

SHOWN = Path(__file__).parent / "shown.json"
DOCUMENT = Path(__file__).parents[3] / "docs" / "state.md"
BEGIN, END = "<!-- shown: begin -->", "<!-- shown: end -->"
NOT_SHOWN = "not run"

MODES = {
    "single": "single process",
    "ddp": "DDP",
    "fsdp2": "FSDP2",
    "tp": "tensor parallel",
    "amp": "DDP, bf16, scaler, accumulation",
}
"""By the name docs/examples/pytorch_parallel.py uses."""

FAILURES = {
    "crash": "a rank crashes",
    "loss": "its machine is lost",
    "losses": "then the replacement, too",
    "replication": "lost while newer steps cannot be replicated",
    "promoted": "the standby is lost while it is promoted",
    "restore": "the replacement is lost while it restores",
    "flipped": "one byte of a replica is flipped",
    "nan replica": "a replica is filled with NaN",
    "nan state": "captured state is not a number",
    "full": "every buffer is needed, then a crash",
    "durable": "all memory is gone",
}


def note(mode: str, shown: dict[str, dict[str, Any]], slot: int) -> None:
    """Keep, if `LMR_SHOWN` is set, where the state of a slot came back from.

    Args:
        mode: a name in `MODES`.
        shown: by a name in `FAILURES`, the plan that training went on with.
        slot: what the failure happened to.
    """
    if os.environ.get("LMR_SHOWN"):
        record = json.loads(SHOWN.read_text()) if SHOWN.exists() else {}
        cells = {name: plan["checkpoint"]["sources"][slot]["tier"] for name, plan in shown.items()}
        record.setdefault(mode, {}).update(cells)
        record["torch"] = metadata.version("torch").partition("+")[0]
        SHOWN.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def render(record: dict[str, Any]) -> str:
    """The table as it stands in the document."""
    rows = [[text, *(_cell(record.get(mode, {}).get(name)) for mode in MODES)] for name, text in FAILURES.items()]
    head = ["what happens", *MODES.values()]
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def _cell(tier: str | None) -> str:
    return NOT_SHOWN if tier is None else f"`{tier}`"


def write() -> None:
    """Bring the document up to date."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{render(json.loads(SHOWN.read_text()))}\n{END}{after}")


if __name__ == "__main__":
    write()
