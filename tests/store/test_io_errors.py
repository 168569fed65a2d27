"""Errors of the disk and of the connection between every two steps of an append: whole or not at all, never half."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from store_samples import batch

from lmr.store import EventLog, open_log
from lmr.store.verify import verify_chain

HERE = Path(__file__).parent


@pytest.mark.timeout(600)
def test_an_io_error_at_any_write_of_an_append_to_sqlite(tmp_path: Path) -> None:
    """Real EIO from a preloaded library, at each write, sync and truncation that an append makes, in turn."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    shim = tmp_path / "failing_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, HERE / "failing_disk.c", "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, HERE / "append_on_failing_disk.py"],
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["failed"] >= 5
    assert found["heads"] == [10, 40]


def test_a_connection_lost_at_any_statement_of_an_append_to_postgresql(postgres: str, postgres_url: str) -> None:
    """The server ends the session before each statement, and before the commit, in turn; append goes on by itself."""
    admin = create_engine(postgres, isolation_level="AUTOCOMMIT")
    lost = 0
    with open_log(postgres_url) as log:
        for at in range(1, 100):
            count, done = 0, False

            def step(connection: Any, *_: Any, at: int = at) -> None:
                nonlocal count, done
                count += 1
                if count == at:
                    done = True
                    pid = connection.connection.driver_connection.info.backend_pid
                    with admin.connect() as other:
                        other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})

            event.listen(log.database.engine, "before_cursor_execute", step)
            event.listen(log.database.engine, "commit", step)
            try:
                assert len(_appended(log, f"r{at}")) in (0, 4)
            finally:
                event.remove(log.database.engine, "before_cursor_execute", step)
                event.remove(log.database.engine, "commit", step)
            assert log.head(f"r{at}").seq == 4
            assert verify_chain(log, f"r{at}").fault is None
            assert log.append(f"r{at}", batch(4)) == []
            lost += done
            if not done:
                break
        else:
            pytest.fail("the statements never came to an end")
    admin.dispose()
    assert lost >= 5


def _appended(log: EventLog, run: str) -> list[Any]:
    return log.append(run, batch(4))


@pytest.mark.timeout(600)
def test_the_log_works_for_an_ordinary_user() -> None:
    """As root, who may write anything, most tests of permissions say nothing: the contract again as `nobody`."""
    if os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    import lmr.store

    packages = os.pathsep.join(
        [str(Path(lmr.store.__file__).parents[2]), *(p for p in sys.path if "site-packages" in p)]
    )
    env = {"PYTHONPATH": packages, "HOME": "/tmp", "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    python = next(
        (found for found in _pythons() if _nobody(found, env, "-c", "import sqlalchemy, pytest").returncode == 0), None
    )
    if python is None:
        pytest.skip("no Python of this version that the user nobody may start")
    place = Path(tempfile.mkdtemp(prefix="lmr-nobody-"))  # pytest shuts its own folder against others
    os.chown(place, 65534, 65534)
    tests = ["test_contract.py", "test_crashes.py::TestDisk", "test_opening.py"]
    try:
        done = _nobody(
            python, env, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not postgres",
            f"--basetemp={place}/t", "-m", "not long", *(str(HERE / name) for name in tests),
        )  # fmt: skip
    finally:
        shutil.rmtree(place)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
    assert "root may write anything" not in done.stdout


def _pythons() -> list[str]:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return [
        sys.executable,
        *(str(path) for path in (Path("/usr/bin") / version, Path("/usr/local/bin") / version) if path.exists()),
    ]


def _nobody(python: str, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [python, *arguments], user=65534, group=65534, extra_groups=[], env=env, cwd=HERE.parents[1],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except PermissionError:
        return subprocess.CompletedProcess([python], 126)
