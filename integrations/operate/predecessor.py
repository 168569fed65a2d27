"""lm-resiliency 0.2.0, in an environment of its own, as a contender of the recovery benchmark."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.2.0"
INSTALL_S = 1_800


class PredecessorMissing(Exception):
    """It could not be installed; the message says why."""


@dataclass(frozen=True)
class Predecessor:
    """An installed lm-resiliency.

    Attributes:
        torchrun: the command of its environment.
    """

    torchrun: Path

    @property
    def name(self) -> str:
        """As tables say it."""
        return f"lm-resiliency {VERSION}"

    @property
    def backend(self) -> str:
        """The rendezvous backend it registers."""
        return "lm_resiliency"

    @classmethod
    def install(cls, folder: Path) -> Predecessor:
        """Make an environment with it and this environment's torch. Takes minutes.

        Raises:
            PredecessorMissing: pip did not manage.
        """
        venv.create(folder, with_pip=True)
        python = folder / "bin" / "python"
        wanted = [f"lm-resiliency=={VERSION}", f"torch=={importlib.metadata.version('torch')}"]
        try:
            ran = subprocess.run(
                [str(python), "-m", "pip", "install", "--quiet", *wanted],
                capture_output=True,
                text=True,
                timeout=INSTALL_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PredecessorMissing(f"lm-resiliency {VERSION}: not installed within {INSTALL_S} s") from None
        if ran.returncode:
            said = ran.stderr.strip().splitlines() or ["pip said nothing"]
            raise PredecessorMissing(
                f"lm-resiliency {VERSION}: not installed on Python {sys.version.split()[0]}: {said[-1]}"
            )
        return cls(folder / "bin" / "torchrun")
