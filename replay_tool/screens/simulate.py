"""A simulation as a table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lmr.replay_tool.sentences import count, duration
from lmr.replay_tool.verbs.simulate import Simulation

_COLUMNS = (
    "",
    "policy",
    "standbys",
    "recoveries",
    "replaced",
    "training kept",
    "a recovery",
    "steps lost",
    "holds",
    "cost",
)


def show(found: Simulation, console: Console) -> None:
    """Prints one row a policy and pool size; `*` marks those that no other beats."""
    size = f"{count(found.nodes, 'node')} for {count(found.days, 'day')}"
    console.print(
        Text(f"{found.profile}, {size}, seed {found.seed}: {count(found.incidents, 'incident')}", style="bold")
    )
    console.print(Text(found.source, style="dim"))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("", "policy") else "right", overflow="fold")
    for row in found.rows:
        table.add_row(
            "*" if row.best else "", row.policy, str(row.standbys), str(row.recoveries), str(row.replacements),
            f"{row.effective_training_permille / 10:.1f} %", duration(row.mean_recovery_ms), f"{row.rollback_steps:,}",
            f"{row.hold_permille / 10:.1f} %", f"{row.lost_node_hours:,} node-h",
        )  # fmt: skip
    console.print(table)
    wrong = sum(row.false_evictions + row.missed_faults + row.false_halts for row in found.rows)
    console.print(Text(f"* no other row costs less and holds less often; {count(wrong, 'wrong decision')} in all rows"))
    text = f"holds: a replacement finds the pool empty, with {count(found.repair_hours, 'hour')} of repair a machine"
    console.print(Text(text, style="dim"))
