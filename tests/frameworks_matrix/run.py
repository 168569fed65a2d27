"""Runs every framework's tests in its own environment: what `make test-frameworks` does.

    python tests/frameworks_matrix/run.py [NAME ...]

Appends what was shown to `.venv-frameworks/matrix.jsonl`, from which the table in docs/frameworks.md is kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import environments

OWN = ("contract", "native", "fifth")
"""What needs nothing but the project's own environment."""


def main() -> int:
    """Run the native modes and each framework; the number of those that failed."""
    here = Path(__file__).parent
    wanted = sys.argv[1:] or [*OWN, *environments.RECIPES]
    environ = {**os.environ, "LMR_MATRIX": str(environments.FOLDER / "matrix.jsonl")}
    environments.FOLDER.mkdir(exist_ok=True)
    failed = []
    for name in wanted:
        python = Path(sys.executable) if name in OWN else environments.make(name)
        command = [str(python), "-m", "pytest", str(here / f"test_{name}.py")]
        if subprocess.run(command, cwd=environments.ROOT, env=environ, check=False).returncode:
            failed.append(name)
    print("failed: " + ", ".join(failed) if failed else "all frameworks passed: " + ", ".join(wanted))
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
