"""Files of 5 GB that are no logs are refused at once, in a line, without being read into memory."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from conftest import CORPUS, Replay

HUGE_BYTES = 5 * 1024**3


def _grown(path: Path, head: bytes) -> Path:
    """A file that begins so and goes on with 5 GB of nothing (a hole, which takes no room on the disk)."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(HUGE_BYTES)
    return path


@pytest.mark.parametrize("kind", ["bundle header", "bundle record", "records", "facts", "nothing"])
def test_five_gigabytes_of_damage_are_one_line(tmp_path: Path, replay: Replay, kind: str) -> None:
    assert replay("export", CORPUS / "hang.jsonl", "-o", tmp_path / "whole.lmrb").code == 0
    whole = (tmp_path / "whole.lmrb").read_bytes()
    lines = whole.splitlines(keepends=True)
    record = (CORPUS / "hang.jsonl").read_bytes().splitlines(keepends=True)[0]
    head = {
        "bundle header": lines[0][:100],
        "bundle record": b"".join(lines[:5]),
        "records": record,
        "facts": b'{"type":"run_opened","at_ms":1,"source":"decider","data":{}}\n',
        "nothing": b"",
    }[kind]
    path = _grown(tmp_path / "huge", head)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ran = replay("verify", path)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 900
