"""Several torchrun agents on this machine that stand for several machines: for the demo, the benchmarks and the tests.

Each agent has its own `LM_RESILIENCY_NODE_ID`, which all its processes inherit; that is how a whole "machine" is found
and killed. Real agents, real processes, real signals; only the machines are one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from lmr.engine.record import Record
from lmr.store import LogUnavailable, open_log

LOOK_S = 0.03
MARK = "LMR_CLUSTER"
"""Tells the processes of one cluster from those of another on this machine."""


class ClusterFailed(Exception):
    """What was waited for did not come; the message says what, and how the agents stand."""


def free_port() -> int:
    """A TCP port nobody has right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Agent:
    """One started torchrun agent."""

    node: str
    process: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        """Everything the agent and its workers printed."""
        return self.output.read_text(errors="replace")


@dataclass
class Cluster:
    """Agents of one run, started by the user's own command.

    Args:
        folder: where outputs and the restart context (and with it the event log) go.
        command: what follows torchrun's own options: a script and its arguments, or `--module NAME ...`.
        run_id: `--rdzv-id`.
        nodes: `--nnodes`.
        nproc: `--nproc-per-node`.
        options: further torchrun options.
        conf: further `--rdzv-conf` keys.
        environ: further environment of the agents.
        endpoint: `--rdzv-endpoint`; a free port of this machine by default.
        backend: `--rdzv-backend`.
        context: whether a restart context path is given.
        log_url: the event log's database server; None: the embedded log beside the restart context.
        inside: what goes before a node's command, such as `ip netns exec NAME`.
        torchrun: the command; None: the one of this interpreter's environment.
    """

    folder: Path
    command: Sequence[str]
    run_id: str = field(default_factory=lambda: f"run-{uuid.uuid4().hex[:8]}")
    nodes: str = "2:3"
    nproc: int = 2
    options: Sequence[str] = ("--max-restarts=4",)
    conf: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    endpoint: str | None = None
    backend: str = "lm_resiliency"
    context: bool = True
    log_url: str | None = None
    inside: Callable[[str], Sequence[str]] = lambda _node: ()
    torchrun: Path | None = None
    agents: dict[str, Agent] = field(default_factory=dict)
    _records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.log_url is not None:
            self.environ = {**self.environ, "LM_RESILIENCY_EVENT_LOG": self.log_url}
        if self.endpoint is None:
            self.endpoint = f"127.0.0.1:{free_port()}"

    @property
    def event_log(self) -> Path:
        """The embedded event log."""
        return self.folder / "events.db"

    def records(self) -> list[Record]:
        """The event log so far; reads only what is new since the last call."""
        if self.log_url is not None or self.event_log.exists():
            try:
                with open_log(self.log_url or self.event_log, create=False, read_only=True) as log:
                    self._records += log.read(self.run_id, after=len(self._records))
            except LogUnavailable:  # its host is making it right now
                pass
        return self._records

    def arguments(self) -> list[str]:
        """The torchrun command line of every agent."""
        conf = dict(self.conf)
        if self.context and self.backend == "lm_resiliency":
            conf.setdefault("lm_resiliency_restart_context_path", str(self.folder / "context.json"))
        return [
            str(self.torchrun or Path(sys.executable).with_name("torchrun")),
            f"--nnodes={self.nodes}",
            f"--nproc-per-node={self.nproc}",
            *self.options,
            f"--rdzv-backend={self.backend}",
            f"--rdzv-endpoint={self.endpoint}",
            f"--rdzv-id={self.run_id}",
            *([f"--rdzv-conf={','.join(f'{key}={value}' for key, value in conf.items())}"] if conf else []),
            *self.command,
        ]

    def start(self, node: str, **environ: str) -> Agent:
        """Start the agent of one node; a second call with the same node is its next life."""
        output = self.folder / f"{node}.out"
        with output.open("ab") as file:
            process = subprocess.Popen(
                [*self.inside(node), *self.arguments()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    **self.environ,
                    MARK: str(self.folder),
                    "LM_RESILIENCY_NODE_ID": node,
                    **environ,
                },
                start_new_session=True,
            )
        agent = Agent(node, process, output)
        self.agents[node] = agent
        return agent

    def wait_for(
        self, condition: Callable[[], bool], what: str, timeout_s: float = 60.0, look_s: float = LOOK_S
    ) -> None:
        """Wait until `condition` holds, looking every `look_s`.

        Raises:
            ClusterFailed: it does not, in time.
        """
        until = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until:
                raise ClusterFailed(f"waited {timeout_s:.0f} s for {what}\n{self.standing()}")
            time.sleep(look_s)

    def wait_exit(self, node: str, timeout_s: float = 60.0) -> int:
        """The exit code of a node's agent.

        Raises:
            ClusterFailed: it is still there after `timeout_s`.
        """
        agent = self.agents[node]
        self.wait_for(lambda: agent.process.poll() is not None, f"the agent of {node} to end", timeout_s)
        return int(agent.process.returncode)

    def standing(self) -> str:
        """How each agent stands, with the end of its output."""
        parts = []
        for agent in self.agents.values():
            code = agent.process.poll()
            tail = "\n    ".join(agent.text().splitlines()[-25:])
            parts.append(f"{agent.node}: {'running' if code is None else f'exit code {code}'}\n    {tail}")
        return "\n".join(parts)

    def processes(self, node: str) -> list[int]:
        """Pids of every process whose environment says it runs on the node."""
        wanted = {"LM_RESILIENCY_NODE_ID": node, MARK: str(self.folder)}
        return [pid for pid in _pids() if wanted.items() <= _environ(pid).items()]

    def trainers(self, node: str) -> dict[int, int]:
        """Pids of the node's trainer processes by global rank: the ones that run the user's script."""
        found = {}
        for pid in self.processes(node):
            rank, parent = _environ(pid).get("RANK"), _parent(pid)
            warm = _warm_rank(pid)
            if rank is not None and _environ(parent).get("RANK") == rank and "RANK" not in _environ(_parent(parent)):
                found[int(rank)] = pid  # child of a supervisor; the children of trainers load data
            elif warm is not None and _warm_rank(parent) is None:
                found[warm] = pid
        return found

    def is_warm(self, node: str) -> bool:
        """Whether the node's warm process has loaded torch and takes requests."""
        pid = f"-{self.agents[node].process.pid}-"
        sockets = Path("/proc/net/unix").read_text().splitlines()
        return any("@lmr-warm-" in line and pid in line for line in sockets)

    def workers(self, node: str) -> dict[int, int]:
        """Pids of the processes torchrun started on the node, by global rank."""
        found: dict[int, int] = {}
        for pid in sorted(self.processes(node)):
            environ = _environ(pid)
            if "RANK" in environ and "RANK" not in _environ(_parent(pid)):
                found.setdefault(int(environ["RANK"]), pid)
        return found

    def kill_machine(self, node: str) -> list[int]:
        """The machine is gone: SIGKILL all that runs on it, memory included. Returns the pids.

        SIGSTOP goes first, so that nothing acts between the first death and the last.
        """
        pids = self.processes(node)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
        return pids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill what is left of every agent."""
        for agent in self.agents.values():
            self.kill_machine(agent.node)
            agent.process.kill()
            agent.process.wait()


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and int(entry) != os.getpid()]


def _environ(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def _warm_rank(pid: int) -> int | None:
    """The rank a process is named after, as forks of the warm process are."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None
    return int(name[4:]) if name.startswith("rank") and name[4:].isdigit() else None


def _parent(pid: int) -> int:
    """The parent's pid; 0 when there is none to be seen."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return int(fields[1])
