"""Why an agent is not taken into a run: a line for its operator and an exit code."""

from __future__ import annotations

from typing import Any, NamedTuple

from lmr.integrations.torchrun.config import BackendConfig
from lmr.integrations.torchrun.roster import Roster


class Refusal(NamedTuple):
    """What a refused agent is told."""

    reason: str
    exit_code: int


def refusal(config: BackendConfig, local_world_size: int, roster: Roster, hello: dict[str, Any]) -> Refusal | None:
    """Why this agent can never be in this run, if so.

    Raises:
        KeyError: something is missing in its hello.
    """
    if hello["run"] != config.run_id:
        return Refusal(f"this endpoint serves run {config.run_id!r}, not {hello['run']!r}", 1)
    if (closed := roster.closed) is not None:
        reason = f"run {config.run_id!r} is closed: {closed.outcome} ({closed.reason})"
        return Refusal(reason, int(closed.outcome != "succeeded"))
    options = (
        ("--nnodes minimum", config.min_nodes, hello["min_nodes"]),
        ("--nnodes maximum", config.max_nodes, hello["max_nodes"]),
        ("--nproc-per-node", local_world_size, hello["local_world_size"]),
    )
    for name, ours, theirs in options:
        if ours != theirs:
            return Refusal(f"{name} is {theirs} here and {ours} in the run: all nodes give the same command", 1)
    if different := config.worker_policy.differences(hello["policy"]):
        return Refusal(f"the worker policy differs from the run's in: {', '.join(different)}", 1)
    return None


def reshaped(config: BackendConfig, local_world_size: int, roster: Roster) -> Refusal | None:
    """Whether a run that goes on was started with other numbers than now: each rank's state fits that rank only."""
    opened = roster.opened
    if opened is None or roster.closed is not None:
        return None
    if (opened.min_nodes, opened.local_world_size) == (config.min_nodes, local_world_size):
        return None
    return Refusal(
        f"run {config.run_id!r} goes on with {opened.min_nodes} nodes of {opened.local_world_size} ranks, not with "
        f"{config.min_nodes} of {local_world_size}: state is not resharded. Give it the --nnodes minimum and "
        f"--nproc-per-node it was started with, or another --rdzv-id",
        1,
    )


def twin(node: str) -> Refusal:
    """Two live agents claim one node id."""
    return Refusal(f"node id {node!r} is in use by a live agent: set LM_RESILIENCY_NODE_ID to tell them apart", 1)


def no_seat(config: BackendConfig, roster: Roster, connected: set[str], node: str) -> Refusal | None:
    """Whether the run has all the nodes it may have without this one."""
    taken = (roster.live_nodes() | connected) - {node}
    if len(taken) < config.max_nodes:
        return None
    if node in roster.seats:
        return Refusal(f"node {node!r} is not needed: the run has its {config.max_nodes} nodes", 0)
    return Refusal(f"node {node!r} would be one more than --nnodes allows ({config.max_nodes})", 1)
