"""What the handler may know of the torchrun agent that called it.

torchrun passes a rendezvous backend neither `--nproc-per-node` nor its workers' pids. Both are on the agent object, one
frame up. That is private to torch, so every look is guarded and has a fallback; `tests/torchrun` pins it to the
supported versions.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger("lmr.agent_view")

DEFAULT_MONITOR_S = 0.1
"""torchrun's own `--monitor-interval`."""
MONITOR_S = 0.005
"""What an agent waits between two looks for a newer plan, unless its user chose an interval. A look waits longer."""


class AgentView:
    """The calling torchrun agent, seen through a guard.

    Args:
        agent: what the frame said, or None.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    @classmethod
    def of_caller(cls, depth: int = 2) -> AgentView:
        """The agent in whose method the handler was called, `depth` frames up from here."""
        try:
            return cls(sys._getframe(depth).f_locals.get("self"))
        except ValueError:
            return cls(None)

    def local_world_size(self) -> int:
        """Workers of this node (`--nproc-per-node`).

        Falls back to the command line and the environment; 1 when nothing says otherwise, as torchrun does.
        """
        try:
            return int(self._agent.get_worker_group().spec.local_world_size)
        except (AttributeError, TypeError, ValueError):
            return _from_command_line(sys.argv) or int(os.environ.get("PET_NPROC_PER_NODE", "1"))

    def script(self) -> Path | None:
        """The file workers run; None where it is a module, or something else than Python."""
        try:
            spec = self._agent.get_worker_group().spec
            arguments = [str(argument) for argument in spec.args]
            entrypoint = spec.entrypoint
        except (AttributeError, TypeError):
            return None
        if not isinstance(entrypoint, str) or "-m" in arguments[:2]:
            return None
        named = next((argument for argument in arguments if not argument.startswith("-")), None)
        return Path(named) if named is not None and named.endswith(".py") else None

    def pids(self) -> list[int]:
        """Processes torchrun started for the current workers."""
        try:
            return [int(pid) for pid in self._agent._pcontext.pids().values()]
        except (AttributeError, TypeError, ValueError):
            return []

    def look_often(self) -> None:
        """Have the agent look for a newer plan soon after there is one; an interval its user chose stays.

        torchrun reads the interval once, after the first rendezvous.
        """
        try:
            spec = self._agent.get_worker_group().spec
            if spec.monitor_interval == DEFAULT_MONITOR_S:
                spec.monitor_interval = MONITOR_S
        except AttributeError:
            return

    def archive_logs(self, generation: int) -> None:
        """Keep the worker logs of a generation: torchrun removes the attempt's folder when it starts the next."""
        try:
            spec = self._agent.get_worker_group().spec
            attempt = spec.max_restarts - self._agent._remaining_restarts
            folder = Path(self._agent._logs_specs._run_log_dir)
        except (AttributeError, TypeError):
            return
        source = folder / f"attempt_{attempt}"
        if not source.is_dir():
            return
        target = folder / f"generation_{generation}"
        try:
            source.rename(target)
        except OSError as error:
            log.warning("logs_not_kept", folder=str(source), why=str(error))


def _from_command_line(argv: list[str]) -> int | None:
    for index, argument in enumerate(argv):
        name, _, value = argument.partition("=")
        if name.replace("_", "-") == "--nproc-per-node":
            text = value or (argv[index + 1] if index + 1 < len(argv) else "")
            return int(text) if text.isdigit() else None
    return None
