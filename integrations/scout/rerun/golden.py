"""Results that were agreed on once: what tells two ranks, or one, who is right.

A call's inputs and parameters come from a seed, so its result is the same for the whole run, on whatever machine of
the same kind. The first time all ranks that computed it agree, it is kept, beside the event log, for all generations.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import structlog

log = structlog.get_logger("lmr.scout")

KEPT = 4096
UNSTEADY = ""


class Golden:
    """Digest by call; an empty one for calls whose kernels are not deterministic.

    Args:
        path: where it is kept; None to forget it with this object.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._digests: dict[str, str] = {}
        if path is not None and path.exists():
            try:
                told = json.loads(path.read_text(encoding="utf-8"))
                self._digests = {str(call): str(digest) for call, digest in told.items()}
            except (OSError, ValueError, AttributeError) as error:
                log.warning("golden_results_unreadable", path=str(path), why=str(error))

    def get(self, call: str) -> str | None:
        """The agreed digest of a call."""
        return self._digests.get(call) or None

    def is_unsteady(self, call: str) -> bool:
        """Whether its results say nothing."""
        return self._digests.get(call) == UNSTEADY

    def agreed(self, call: str, digest: str) -> None:
        """All ranks that computed the call got this."""
        self._keep(call, digest)

    def unsteady(self, call: str) -> None:
        """The call's result changes by itself."""
        self._keep(call, UNSTEADY)

    def _keep(self, call: str, digest: str) -> None:
        if self._digests.get(call) == digest or (call not in self._digests and len(self._digests) >= KEPT):
            return
        self._digests[call] = digest
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            beside = self._path.with_suffix(".new")
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(self._digests, file)
            beside.replace(self._path)
        except OSError as error:
            log.warning("golden_results_not_kept", path=str(self._path), why=str(error))
