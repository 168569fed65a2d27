"""What `lmr bench` makes of its measurements; nothing is timed here."""

from lmr.integrations.operate.bench import tables
from lmr.integrations.operate.main import main
from lmr.integrations.operate.recovery_bench import KINDS, Measured, table


def test_a_kind_has_a_row_a_contender_with_median_spread_and_ratio_and_one_of_phases() -> None:
    ours = Measured([0.6, 0.5, 0.9], [0, 0, 0], [{"detect": 10, "decide": 300}, {"detect": 20, "decide": 320}])
    stock = Measured([2.0, 2.0, 3.0], [40, 41, 44])
    ours_row, stock_row, phases = table(KINDS[0], {"lm_resiliency": ours, "stock c10d": stock})
    assert (ours_row["median_s"], ours_row["spread_s"], ours_row["ratio"]) == (0.6, "0.50 to 0.90", 0.3)
    assert (stock_row["ratio"], stock_row["steps_lost"], stock_row["repetitions"]) == (1.0, 41, 3)
    assert phases == {"failure": KINDS[0].name, "detect_ms": 15, "decide_ms": 310}


def test_who_does_not_recover_has_the_reason_instead() -> None:
    failed = Measured(note="did not recover: ValueError: no such backend")
    rows = table(KINDS[0], {"lm_resiliency": Measured([0.5], [0]), "stock c10d": Measured([1.0], [9]), "old": failed})
    assert (rows[2]["median_s"], rows[2]["ratio"], rows[2]["note"]) == (None, None, failed.note)


def test_rows_with_the_same_columns_share_a_table() -> None:
    shown = tables("recovery", [{"a": 1, "b": None}, {"c": 2}, {"a": 3, "b": 4}])
    assert [(len(t.columns), t.row_count) for t in shown] == [(2, 2), (1, 1)]


def test_a_table_that_goes_to_a_file_is_cut_nowhere(capsys, monkeypatch) -> None:
    row = {f"column {n}": 1234.5678 + n for n in range(13)}
    monkeypatch.setattr("lmr.integrations.gemini.bench.run", lambda *, quick: [row])
    assert main(["bench", "--only", "gemini"]) == 0
    shown = capsys.readouterr().out
    assert all(str(value) in shown and name in shown for name, value in row.items())
