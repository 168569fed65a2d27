"""The table of docs/state.md is what the tests have shown."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import failure_table as table


def test_the_table_is_what_was_shown():
    """Lines of the table are written by `python tests/torchrun/failures/failure_table.py` only."""
    record = json.loads(table.SHOWN.read_text())
    said = table.DOCUMENT.read_text().partition(table.BEGIN)[2].partition(table.END)[0]
    assert said == f"\n{table.render(record)}\n"
    assert record.keys() - {"torch"} <= table.MODES.keys()
    assert all(record[mode].keys() <= table.FAILURES.keys() for mode in record.keys() - {"torch"})
