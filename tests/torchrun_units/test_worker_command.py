"""Which processes will never report themselves."""

import subprocess
import sys

import pytest

from lmr.integrations.torchrun.worker_command import ignores_us


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-E"], True),
        (["-u", "-I"], True),
        (["-uS"], True),
        (["-u"], False),
        (["-X", "importtime"], False),
        (["-XE"], False),
        (["-W", "ignore"], False),
        (["-W", "ignore", "-E"], True),
    ],
)
def test_a_python_that_ignores_its_environment_is_known(options, expected, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print(flush=True); input()")
    command, pipe = [sys.executable, *options, script, "-E"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        process.stdout.readline()
        assert ignores_us(process.pid) is expected
        process.communicate(b"\n")


def test_what_is_no_python_may_start_one_later():
    with subprocess.Popen(["cat", "-E"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert not ignores_us(process.pid)
        process.communicate(b"")


def test_a_process_that_is_gone_is_nothing():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert not ignores_us(process.pid)
