"""A round of a campaign: a real training of four nodes and two standbys, faults by chance, and what must hold then."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from network_machines import Machines
from postgres_server import PostgresServer

from chaos.faults import FAULTS
from lmr.engine.events import CheckpointFlushed, PlanCommitted, RunClosed, TrainingResumed
from lmr.engine.record import Record
from lmr.integrations.operate.cluster import Cluster, ClusterFailed
from lmr.integrations.operate.final_state import differences, last_losses, newest_step

TRAINING = Path(__file__).with_name("training.py")
ACTIVE, ALL = 4, 6
NODES = tuple(f"node-{number}" for number in range(1, ALL + 1))
SIDES = {node: "ab"[number % 2] for number, node in enumerate(NODES)}
"""The switch of each node, where they have cables; said as its failure domain, so that replicas are on both sides."""
HEARTBEAT_MS = 3_000
POLICY = """\
schema_version = 1
[checkpoint]
disk_folder = "{disk}"
disk_every_s = 1
[recovery]
publish_ms = 200
lease_ms = 5000
blame_window_s = 1  # the faults come by chance, no node is to blame
"""
PATIENCE_S = 120.0
"""A round in which nothing moved for so long is stuck."""
MOST_S = 600.0
"""The longest wait for anything: a run that only ever restarts is stuck as well."""
LOOK_S = 0.25
"""How often the log is read."""
LEFT_IN_FOLDER = {
    *("artifacts", "decider.json", "events.db", "events.db-shm", "events.db-wal", "golden.json"),
    *("disk", "policy.toml", "secret", "tmp"),
}
TORCHS_OWN = ("torchelastic_", "torchinductor_")
"""What torch itself leaves in the temporary folder: the logs of torchrun, and a cache."""


def training_command(folder: Path, steps: int) -> list[str]:
    """The same script for both runs that are compared; a small model, since all ranks share this machine."""
    small = ["--width", "32", "--layers", "1", "--window", "32"]
    return [
        *(str(TRAINING), "--steps", str(steps), *small),
        *("--log-file", str(folder / "log"), "--final", str(folder / "final")),
    ]


def uninterrupted(folder: Path, steps: int) -> Path:
    """A run that nothing happens to, with stock torchrun."""
    command = training_command(folder, steps)
    with Cluster(folder, command, run_id="plain", nodes="1", nproc=ACTIVE, backend="c10d") as plain:
        plain.start("alone")
        if plain.wait_exit("alone", 600) != 0:
            raise ClusterFailed(plain.standing())
    return folder


class Round:
    """One run and its faults.

    Args:
        folder: new; kept when something is wrong.
        seed: of the faults.
        steps: optimizer steps of the training.
        say: told each thing that is done.
        server: a database server to keep the log in; None: embedded.
        machines: namespaces to run the nodes in; None: all share this machine's network.
    """

    def __init__(
        self,
        folder: Path,
        seed: str,
        steps: int,
        say: Callable[[str], None],
        server: PostgresServer | None = None,
        log_url: str | None = None,
        machines: Machines | None = None,
    ) -> None:
        self.server = server
        self.machines = machines
        self._steps = steps
        self._say = say
        self._seed = seed
        self._due: list[tuple[float, Callable[[], object]]] = []
        self._before = _places()
        self._away: set[str] = set()
        """Nodes whose agent was ended on purpose and not started again."""
        self._known: list[Record] = []
        self._looked, self._told, self._struck_at = 0.0, 0, 0
        self.disk = folder / "disk"
        self.faults: Counter[str] = Counter()
        """How many of each group there were."""
        (folder / "tmp").mkdir(parents=True)
        (folder / "policy.toml").write_text(POLICY.format(disk=self.disk))
        (folder / "secret").write_bytes(b"a secret of this campaign only!!")
        addresses = [machines.add(node, SIDES[node]) for node in NODES] if machines else []
        self.cluster = Cluster(
            folder,
            training_command(folder, steps),
            nodes=f"{ACTIVE}:{ALL}",
            nproc=1,
            conf={
                "lm_resiliency_worker_config": str(folder / "policy.toml"),
                "lm_resiliency_heartbeat_timeout_ms": str(HEARTBEAT_MS),
            },
            environ={
                "LM_RESILIENCY_SECRET_FILE": str(folder / "secret"),
                "TMPDIR": str(folder / "tmp"),
                "CHAOS_STEP_S": "0.03",
                **({"GLOO_SOCKET_IFNAME": "eth0"} if machines else {}),
            },
            endpoint=f"{addresses[0]}:29400" if addresses else None,
            log_url=log_url,
            inside=machines.inside if machines else lambda _node: (),
        )

    # -- what faults ask -----------------------------------------------------------------------------------------------

    def _records(self) -> list[Record]:
        """The log, as it was a moment ago at most; what is new of plans is said."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._known = self.cluster.records()
            self._looked = time.monotonic()
            for record in self._known[self._told :]:
                self._tell(record)
            self._told = len(self._known)
        return self._known

    def _tell(self, record: Record) -> None:
        match record.event.data:
            case PlanCommitted(plan=plan):
                step = f", step {plan.checkpoint.step}" if plan.checkpoint is not None else ""
                nodes = " ".join(a.node for a in plan.assignments)
                self._say(f"    {plan.action} ({plan.reason}): generation {plan.to_generation}{step} on {nodes}")
            case RunClosed(outcome=outcome, reason=reason):
                self._say(f"    {outcome} ({reason})")
            case _:
                pass

    def _plan(self) -> PlanCommitted | None:
        found = [r.event.data for r in self._records() if isinstance(r.event.data, PlanCommitted)]
        return found[-1] if found else None

    def on_disk(self) -> bool:
        """Whether all slots of some step of this generation are on disks: all memory may go then."""
        plan = self._plan()
        if plan is None:
            return False
        slots: dict[int, set[int]] = {}
        for record in self._records():
            data = record.event.data
            if isinstance(data, CheckpointFlushed) and data.generation == plan.plan.to_generation:
                slots.setdefault(data.step, set()).add(data.slot)
        return sum(len(found) == ACTIVE for found in slots.values()) > 1

    def active(self) -> list[str]:
        """Nodes of the newest plan."""
        plan = self._plan()
        return [a.node for a in plan.plan.assignments] if plan is not None else [NODES[0]]

    def living(self) -> list[str]:
        """Nodes whose agent runs."""
        return sorted(node for node, agent in self.cluster.agents.items() if agent.process.poll() is None)

    def expendable(self, chance: random.Random) -> str | None:
        """A node that may be lost now: not the embedded log's host, and two may be away at a time."""
        living = self.living()
        if len(living) <= ALL - 2:
            return None
        return chance.choice([node for node in living if self.server is not None or node != NODES[0]])

    def named(self, node: str, module: str) -> list[int]:
        """Pids of a node's processes that run a module."""
        found = []
        for pid in self.cluster.processes(node):
            with contextlib.suppress(OSError):
                if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        """Undo something in a while."""
        self._due.append((time.monotonic() + seconds, act))

    def relaunch_later(self, node: str, chance: random.Random) -> None:
        """Start the node's agent again, as a scheduler does."""
        self._away.add(node)
        self.later(chance.uniform(1, 6), lambda: self._relaunch(node))

    def _relaunch(self, node: str) -> None:
        if self._closed() is not None:
            return
        if self.cluster.agents[node].process.poll() is None:
            self.later(0.5, lambda: self._relaunch(node))
            return
        self._say(f"{node} is started again")
        self._away.discard(node)
        self._start(node)

    def _start(self, node: str) -> None:
        domain = {"LM_RESILIENCY_FAILURE_DOMAIN": SIDES[node]} if self.machines is not None else {}
        self.cluster.start(node, **domain)

    # -- the round -----------------------------------------------------------------------------------------------------

    def play(self, faults: int, until: float) -> list[str]:
        """Train under so many faults, and none after `until` (monotonic). Returns what is wrong afterwards."""
        with self.cluster:
            try:
                self._start(NODES[0])  # who serves the endpoint
                self._wait(lambda: self._joined(NODES[:1]), "the first node to join")
                for node in NODES[1:]:
                    self._start(node)
                self._wait(lambda: self._joined(NODES), "all nodes to join")
                for number in range(faults):
                    self._wait(self._trains, "training to go on")
                    if self._closed() is not None or newest_step(self._log(0)) > self._steps * 9 // 10:
                        break
                    if time.monotonic() > until:
                        break
                    self._strike(random.Random(f"{self._seed}:{number}"))
                self._wait(lambda: self._closed() is not None and not self.living() and not self._due, "the end")
            except ClusterFailed as failed:
                self._settle_all()
                return [str(failed)]
            return self._judge()

    def _log(self, rank: int) -> Path:
        return self.cluster.folder / f"log.rank{rank}.jsonl"

    def _joined(self, nodes: tuple[str, ...]) -> bool:
        return {r.event.source for r in self._records() if r.event.type == "node_joined"} >= set(nodes)

    def _closed(self) -> RunClosed | None:
        return next((r.event.data for r in self._records() if isinstance(r.event.data, RunClosed)), None)

    def _trains(self) -> bool:
        """The newest generation has made some steps: what comes back without progress is for other tests."""
        if self._closed() is not None:
            return True
        plan = self._plan()
        if plan is None or plan.plan.action == "hold":
            return False
        went_on = [r.event.data for r in self._records() if isinstance(r.event.data, TrainingResumed)]
        begun = [data.step for data in went_on if data.generation == plan.plan.to_generation]
        moves = self._steps_done() > self._struck_at + 12
        return moves and bool(begun) and _last_line_step(self._log(0)) > begun[-1] + 12

    def _steps_done(self) -> int:
        """Steps of rank 0, repeated ones too."""
        try:
            return self._log(0).read_bytes().count(b"\n")
        except OSError:
            return 0

    def _strike(self, chance: random.Random) -> None:
        """After a moment, some fault of some group."""
        self._pass(chance.uniform(0.2, 4))
        groups = [group for group in FAULTS if group != "network" or self.machines is not None]
        for _ in range(20):
            group = chance.choice(groups)
            done = None
            with contextlib.suppress(OSError):  # who was to be struck has just gone
                done = chance.choice(FAULTS[group])(self, chance)
            if done is not None:
                self._struck_at = self._steps_done()
                self.faults[group] += 1
                self._say(f"step {_last_line_step(self._log(0))}: {done}")
                return

    def _pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._act()
            time.sleep(0.05)

    def _act(self) -> None:
        now = time.monotonic()
        due = [act for at, act in self._due if at <= now]
        self._due = [(at, act) for at, act in self._due if at > now]
        for act in due:
            act()

    def _settle_all(self) -> None:
        for _, act in self._due:
            act()
        self._due.clear()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait as long as anything moves: the log or the training."""
        seen, since = (-1, -1), 0.0

        def met() -> bool:
            nonlocal seen, since
            self._act()
            if condition():
                return True
            now, stands = time.monotonic(), (len(self._records()), _last_line_step(self._log(0)))
            if stands != seen:
                seen, since = stands, now
            elif now - since > PATIENCE_S:
                raise ClusterFailed(
                    f"nothing moved for {PATIENCE_S:.0f} s, waiting for {what}\n{self.cluster.standing()}"
                )
            return False

        self.cluster.wait_for(met, what, MOST_S)

    # -- the judgement -------------------------------------------------------------------------------------------------

    def _judge(self) -> list[str]:
        closed = self._closed()
        if closed is None or closed.outcome != "succeeded":  # what it kept is for the next start of the run
            return [f"the run closed as {closed}", *self._verified()]
        wrong = []
        for node, agent in self.cluster.agents.items():
            if agent.process.returncode != 0 and node not in self._away:
                wrong.append(f"the agent of {node} ended with {agent.process.returncode}: {agent.text()[-600:]}")
            if "never retrieved" in agent.text():
                wrong.append(f"{node} lost an exception: {agent.text()[-2000:]}")
        moved = [
            r.event.data.plan.to_generation
            for r in self._records()
            if isinstance(r.event.data, PlanCommitted) and r.event.data.plan.action not in ("hold", "halt")
        ]
        if moved != list(range(len(moved))):
            wrong.append(f"plans for the generations {moved}")
        return wrong + self._verified() + self._left_behind()

    def keep_log(self) -> None:
        """Leave the log as a file that `lmr-replay` reads, also of a database that will be gone."""
        where = self.cluster.log_url or str(self.cluster.event_log)
        file = self.cluster.folder / "log.jsonl"
        command = [str(Path(sys.executable).with_name("lmr-replay")), "export", where, "--run", self.cluster.run_id]
        subprocess.run([*command, "-o", str(file)], capture_output=True, timeout=120, check=False)

    def _verified(self) -> list[str]:
        where = self.cluster.log_url or str(self.cluster.event_log)
        command = [str(Path(sys.executable).with_name("lmr-replay")), "verify", where, "--run", self.cluster.run_id]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        return [] if done.returncode == 0 else [f"lmr-replay verify: {done.stdout}{done.stderr}"]

    def _left_behind(self) -> list[str]:
        wrong = []
        with contextlib.suppress(ClusterFailed):
            self.cluster.wait_for(lambda: not any(map(self.cluster.processes, NODES)), "all processes to end", 30)
        wrong += [f"{node} left process {pid}" for node in NODES for pid in self.cluster.processes(node)]
        scopes = [hashlib.sha256(f"{self.cluster.run_id}\0{node}".encode()).hexdigest()[:16] for node in NODES]
        left = {entry for entry in _places() - self._before if any(s in entry for s in (*scopes, self.cluster.run_id))}
        names = {path.name for path in self.cluster.folder.iterdir() if path.suffix not in (".out", ".jsonl", ".pt")}
        extra = {name for name in names - LEFT_IN_FOLDER if not name.startswith("context.")}
        own = {f"tmp/{entry}" for entry in os.listdir(self.cluster.folder / "tmp") if not entry.startswith(TORCHS_OWN)}
        for node in set(NODES) - self._away:  # the disk of a machine that is away is its own
            own |= {str(file) for file in self.disk.glob(f"*/{node}/*")}
        return wrong + [f"left behind: {entry}" for entry in sorted(left | extra | own)]

    def compare(self, plain: Path) -> list[str]:
        """Where the state or a loss differs from the uninterrupted run's."""
        wrong = []
        for rank in range(ACTIVE):
            name = f"final.rank{rank}.pt"
            if not (self.cluster.folder / name).exists():
                wrong.append(f"rank {rank} left no final state")
                continue
            if different := differences(plain / name, self.cluster.folder / name):
                wrong.append(f"rank {rank}: the final state differs in {len(different)} places: {different[:3]}")
            mine, theirs = last_losses(self._log(rank)), last_losses(plain / f"log.rank{rank}.jsonl")
            if mine != theirs:
                steps = sorted(step for step in mine.keys() | theirs.keys() if mine.get(step) != theirs.get(step))
                wrong.append(f"rank {rank}: the loss differs at steps {steps[:5]}")
        return wrong


def _last_line_step(log: Path) -> int:
    """The step of the newest whole line; after a rollback it is lower than before."""
    try:
        lines = log.read_bytes()[-4096:].split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines):
        if line.startswith(b'{"step": ') and line.endswith(b"}"):
            return int(line[9:].split(b",")[0])
    return 0


def _places() -> set[str]:
    """What a run may leave on the machine: shared memory, temporary files, abstract sockets."""
    found = {f"{place}/{name}" for place in ("/dev/shm", "/tmp") for name in os.listdir(place)}
    return found | {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "@lmr-" in line}
