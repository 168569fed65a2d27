"""Runs every framework's tests in its own environment: what `make test-frameworks` does.

    python tests/frameworks_matrix/run.py [NAME ...]

Environments are made one after the other while tests of others run; two suites run at a time, for a framework that
starts keeps one core busy and then waits. Output of a suite is printed when it is complete. What was shown goes to
`.venv-frameworks/matrix.jsonl`. When all suites have run and passed, the table in docs/frameworks.md is made from it,
and only then are the tests of what holds for every adapter run, which look at the table, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import environments
import matrix

OWN = ("native", "fifth", "versions", "contract")
"""What needs nothing but the project's own environment; in each other one its version is tried, too."""
ORDER = ("native", "deepspeed", "megatron", "torchtitan", "huggingface", "lightning", "fifth", "versions")
"""What is ready first, then what takes longest."""
LAST = "contract"
"""What is about no framework, and reads the documentation."""
LANES = 2


def suite(name: str, ready: Future[Path] | None) -> bool:
    """Run one framework's tests once its environment is there, and once more what failed; whether they passed."""
    python = Path(sys.executable) if ready is None else ready.result()
    began = time.monotonic()
    good = tests(name, python)
    if not good:
        print(f"{name}: a second try of what failed. What passes only now is a flaky test: a bug of ours to look into.")
        good = tests(name, python, "--last-failed")
    print(f"{name} {'passed' if good else 'failed'} in {time.monotonic() - began:.0f} s", flush=True)
    return good


def tests(name: str, python: Path, *more: str) -> bool:
    """Run them, print what they said, and whether they passed."""
    cache = environments.FOLDER / f"cache-{name}"
    here = Path(__file__).parent
    files = [str(here / f"test_{name}.py"), *([] if name in OWN else [str(here / "test_versions.py")])]
    done = subprocess.run(
        [str(python), "-m", "pytest", "-o", f"cache_dir={cache}", "--durations=10", *more, *files],
        cwd=environments.ROOT,
        env={**os.environ, "LMR_MATRIX": str(matrix.RECORD)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, flush=True)
    return done.returncode == 0


def main() -> int:
    """Run the native modes and each framework, or what is named; the number of suites that failed."""
    began = time.monotonic()
    wanted = sys.argv[1:] or [*ORDER, LAST]
    environments.FOLDER.mkdir(exist_ok=True)
    if not sys.argv[1:]:
        matrix.RECORD.unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as makers, ThreadPoolExecutor(LANES) as lanes:
        drills = [name for name in wanted if name != LAST]
        ready = {name: None if name in OWN else makers.submit(environments.make, name) for name in drills}
        running = {name: lanes.submit(suite, name, ready[name]) for name in drills}
        failed = [name for name, one in running.items() if not passed(name, one)]
    if not failed and not sys.argv[1:]:
        changed = matrix.write()
        print(f"{matrix.DOCUMENT}: the table {'has changed' if changed else 'is as it was'}", flush=True)
    if LAST in wanted and not suite(LAST, None):
        failed.append(LAST)
    said = "failed: " + ", ".join(failed) if failed else "all frameworks passed: " + ", ".join(wanted)
    print(f"{said}; {time.monotonic() - began:.0f} s in total")
    return len(failed)


def passed(name: str, one: Future[bool]) -> bool:
    """Whether a suite passed; one whose environment cannot be made has failed."""
    try:
        return one.result()
    except subprocess.CalledProcessError as error:
        print(f"{name}: its environment could not be made: {error}", flush=True)
        return False


if __name__ == "__main__":
    sys.exit(main())
