"""Other Python versions that happen to be on this machine."""

import os
import shutil
import subprocess
from pathlib import Path


def interpreter(version: str) -> str | None:
    """A `python` of that version (`3.12`) on the path, or one that pyenv has."""
    found = shutil.which(f"python{version}")
    if found is not None and subprocess.run([found, "--version"], capture_output=True).returncode == 0:
        return found
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    kept = sorted(root.glob(f"{version}.*/bin/python")) if root.is_dir() else []
    return str(kept[-1]) if kept else None
