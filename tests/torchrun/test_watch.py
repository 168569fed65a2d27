"""`lmr watch` beside a run that trains: what it shows changes with the run, also while the log cannot be read."""

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.torchrun


class Screen:
    """A terminal that `lmr watch` writes to; keeps all that was ever on it."""

    def __init__(self, log_url):
        self._seen = bytearray()
        ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name("lmr"), "watch", log_url],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "160"},
        )
        os.close(theirs)
        self._thread = threading.Thread(target=self._read, args=(ours,))
        self._thread.start()

    def _read(self, terminal):
        try:
            while True:
                self._seen += os.read(terminal, 4096)
        except OSError:  # nobody writes to it any more
            os.close(terminal)

    def shows(self, row, pattern):
        """Whether a row was ever seen with this value."""
        return re.search(rf"{row} +{pattern}", self._seen.decode(errors="replace")) is not None

    def end(self):
        self.process.kill()
        self.process.wait()
        self._thread.join()


@pytest.mark.long
def test_a_run_is_watched_while_its_log_comes_and_goes(job, own_postgres, tmp_path):
    """Step and certified step, an outage of the database, a recovery, the end: each is seen, and the exit code is 0."""
    (tmp_path / "secret").write_bytes(b"a secret of this test's run only")
    secret = {"LM_RESILIENCY_SECRET_FILE": str(tmp_path / "secret")}
    loop = job("--steps", "400", "--step-s", "0.03", nodes="1:2", nproc=1, log_url=own_postgres.url, environ=secret)
    loop.start_all("node-1", "node-2")
    loop.train_until(10)
    screen = Screen(own_postgres.url)

    def wait_shown(row, pattern):
        loop.wait_for(lambda: screen.shows(row, pattern), f"{row} {pattern} on the screen")

    try:
        wait_shown("state", "training")
        wait_shown("newest certified step", r"\d+")
        wait_shown("node-2", "standby")
        own_postgres.stop("immediate")
        wait_shown("cannot read the log", r"\S")
        own_postgres.start()
        os.kill(loop.trainers("node-1")[0], signal.SIGKILL)
        wait_shown("recoveries", "1")
        wait_shown("last decision", r"restart \(process_crash\)")
        for node in ("node-1", "node-2"):
            assert loop.wait_exit(node, 120) == 0, loop.standing()
        assert screen.process.wait(30) == 0
        wait_shown("state", "succeeded")
    finally:
        screen.end()
