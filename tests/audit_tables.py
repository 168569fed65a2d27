"""Query results as the tables that docs/audit.md shows."""

from collections.abc import Sequence

_WIDEST = 40


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; long texts and hashes are cut, NULL is empty."""
    lines = [columns, ["---"] * len(columns), *([_cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."
