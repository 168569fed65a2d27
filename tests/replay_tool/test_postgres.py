"""A log on a real PostgreSQL server reads as the file it came from."""

from __future__ import annotations

import pytest
from conftest import CORPUS, Replay


@pytest.mark.parametrize("name", ["lemon-node", "restore-ladder"])
def test_a_run_on_postgresql_is_the_same_run(name: str, postgres_url: str, replay: Replay) -> None:
    """Imported, verified, told and decided again: every answer is the file's, and no password is shown."""
    path = CORPUS / f"{name}.jsonl"
    assert replay("import", path, "--into", postgres_url).code == 0
    assert replay("verify", postgres_url).out == replay("verify", path).out
    for verb in ("explain", "timeline", "state", "bisect"):
        assert replay(verb, postgres_url).out == replay(verb, path).out
    assert replay("diff", postgres_url, path).code == 0


def test_runs_are_chosen_by_name(postgres_url: str, replay: Replay) -> None:
    for name in ("hang", "desync"):
        replay("import", CORPUS / f"{name}.jsonl", "--into", postgres_url)
    ran = replay("verify", postgres_url)
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "desync, hang" in ran.err
    assert replay("verify", postgres_url, "--run", "hang").code == 0
