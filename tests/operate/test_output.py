"""What `lmr` does when its output cannot be written, and how it names itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lmr import __version__
from lmr.integrations.operate.main import main as lmr


def ran(words: str, log: str, into: str) -> subprocess.CompletedProcess[str]:
    script = f"{sys.executable} -m lmr.integrations.operate.main {words} {log} {into}; echo ${{PIPESTATUS[0]}} >&2"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("words", ["status", "status --json", "db current"])
def test_a_full_disk_is_one_line(words: str, recorded) -> None:
    verb = words.split()[0]
    assert ran(words, recorded("node-loss"), "> /dev/full").stderr == f"lmr {verb}: No space left on device\n2\n"


@pytest.mark.parametrize("words", ["status", "status --json --exit-code"])
def test_a_reader_that_goes_away_is_told_by_the_exit_code_alone(words: str, recorded) -> None:
    assert ran(words, recorded("node-loss"), "| true").stderr == "141\n"


def test_it_says_its_version(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        lmr(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"lmr {__version__}\n"
