"""Slurm accounting: nodes that failed and steps that died.

Read from `sacct --parsable2` with at least JobID, State, ExitCode, NodeList and End; FailedNode tells which node.
"""

from __future__ import annotations

import re
from pathlib import Path

from lmr.engine.events import ExitError, NodeLost, WorkerExited
from lmr.replay_tool.errors import Unreadable
from lmr.replay_tool.importers.hostlist import hosts
from lmr.replay_tool.importers.sighting import Gleaned, Job, Sighting
from lmr.replay_tool.importers.stamps import stamp_ms

_NEEDED = ("JobID", "State", "ExitCode", "NodeList", "End")
_STEP = re.compile(r"^\d+(?:_\d+)?\.(?:\d+|batch|extern)$")


def recognizes(head: bytes) -> bool:
    """True for parsable output with a header."""
    first = head.split(b"\n", 1)[0]
    return b"|" in first and b"JobID" in first and b"State" in first


def read(path: Path, job: Job) -> Gleaned:
    """What became of the job's steps."""
    gleaned = Gleaned()
    rows = [line.split("|") for line in path.read_text("utf-8").splitlines() if line.strip()]
    header = rows[0]
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        raise Unreadable(
            str(path), f"no column {missing[0]}; run sacct --parsable2 --format={','.join(_NEEDED)},FailedNode"
        )
    for number, row in enumerate(rows[1:], start=2):
        fields = dict(zip(header, row, strict=False))
        _one(fields, gleaned, job, f"{path}:{number}")
    return gleaned


def _one(fields: dict[str, str], gleaned: Gleaned, job: Job, where: str) -> None:
    state = fields["State"].split()[0] if fields["State"].strip() else ""
    nodes = hosts(fields["NodeList"]) if fields["NodeList"] not in ("", "None assigned") else []
    at_ms = stamp_ms(fields["End"], job.year)
    is_step = _STEP.match(fields["JobID"]) is not None
    if not is_step and nodes:
        gleaned.nodes = gleaned.nodes or nodes
    if state == "NODE_FAIL" and not is_step:
        failed = hosts(fields.get("FailedNode", "")) if fields.get("FailedNode") not in (None, "", "None") else []
        if not failed:
            gleaned.notes.append(f"{where}: a node failed, but not which (ask sacct for FailedNode)")
        for name in failed:
            data = NodeLost(node=name, incarnation=name, reason="slurm_node_fail")
            gleaned.sightings.append(Sighting(data, at_ms, name, where))
    elif state in ("FAILED", "OUT_OF_MEMORY") and is_step and not fields["JobID"].endswith((".batch", ".extern")):
        _died(fields, state, nodes, at_ms, gleaned, job, where)
    elif state in ("CANCELLED", "TIMEOUT", "PREEMPTED") and not is_step:
        gleaned.notes.append(f"{where}: the job ended as {state.lower()}: no failure of its own")


def _died(
    fields: dict[str, str], state: str, nodes: list[str], at_ms: int | None, gleaned: Gleaned, job: Job, where: str
) -> None:
    if len(nodes) != 1:
        gleaned.notes.append(f"{where}: step {fields['JobID']} failed on {len(nodes)} nodes; its logs say which rank")
        return
    code, _, signal = fields["ExitCode"].partition(":")
    number = int(signal) if signal.isdecimal() and signal != "0" else None
    memory = state == "OUT_OF_MEMORY"
    kind = "out_of_memory" if memory else "signal" if number is not None else "unknown"
    first = job.first_rank(nodes[0])
    data = WorkerExited(
        generation=0,
        node=nodes[0],
        rank=first if first is not None else 0,
        exit_code=int(code) if number is None and code.isdecimal() else None,
        signal=number,
        error=ExitError(kind=kind, type=f"slurm {state}", fingerprint=f"slurm-{state.lower()}"),  # type: ignore[arg-type]
    )
    gleaned.sightings.append(Sighting(data, at_ms, nodes[0], where))
