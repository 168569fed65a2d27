"""Runs a group of cases in one training under our backend, and each case alone under plain torchrun."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case, Group

from lmr.engine.record import Record
from lmr.integrations.faults.marks import Marks, Strike
from lmr.integrations.faults.network import Namespace
from lmr.integrations.operate.cluster import free_port

TESTS = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("torchrun_jobs", TESTS / "torchrun" / "conftest.py")
torchrun = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(torchrun)

SCRIPT = Path(__file__).parent / "scripts" / "metric_training.py"
WORLD = 4
NODES = ("node-1", "node-2", "node-3")
POLICY = {
    # Each fault is a story of its own here: the blame of the one before must not evict anybody.
    "recovery": "publish_ms = 100\nblame_window_s = 1\n",
    "replay.hang": "floor_ms = 4000\n",
    "replay.stall": "input_floor_ms = 4000\n",
}
ACCUSED_BY = {
    "state_diverged": "ranks",
    "replay_checked": "ranks",
    "collective_desynced": "ranks",
    "rank_hung": "ranks",
    "loss_diverged": "ranks",
    "rank_slowed": "rank",
    "input_stalled": "rank",
    "checkpoint_stalled": "rank",
    "worker_exited": "rank",
    "device_unhealthy": "node",
    "config_drifted": "node",
    "node_lost": "node",
    "restore_failed": "holder",
    "checkpoint_dropped": "holder",
}
"""Facts that say something is wrong, and where they say with whom."""
STANDSTILL_S = 30.0
STRIKE_S = 240.0
"""Until a fault strikes a training that is on its own, on a busy machine."""
LONG_S = 600.0


class InjectedJob(torchrun.Job):
    """A job whose agents are started by `lmr inject`."""

    def __post_init__(self) -> None:
        """Nobody has been sent away yet."""
        super().__post_init__()
        self.sent_away: set[str] = set()

    @property
    def campaign(self) -> Path:
        """The campaign file."""
        return self.folder / "campaign.toml"

    @property
    def marks(self) -> Marks:
        """What has struck."""
        return Marks(self.folder / "campaign.toml.marks")

    def arguments(self) -> list[str]:
        """`lmr inject CAMPAIGN -- torchrun ...`."""
        lmr = Path(sys.executable).with_name("lmr")
        return [str(lmr), "inject", str(self.campaign), "--", *super().arguments()]


@dataclass
class Outcome:
    """What a case came to, as it stands in the table. Times in ms since the fault struck."""

    name: str
    detected: str | None = None
    named: tuple[str, ...] = ()
    right: bool = False
    wrong: int = 0
    action: str | None = None
    cause: str | None = None
    detect_ms: int | None = None
    decide_ms: int | None = None
    resume_ms: int | None = None
    steps_lost: int | None = None
    equal: bool = False


# Under our backend ----------------------------------------------------------------------------------------------------


def measure(group: Group, folder: Path) -> list[Outcome]:
    """Run a group's training to its end, with an operator who replaces machines that were taken out."""
    whole = undisturbed(group, folder)
    with _job(group, folder) as job:
        until = time.monotonic() + LONG_S
        while not job.events("run_closed") and time.monotonic() < until:
            if len(group.cases) > 1:
                _operate(job)
            time.sleep(0.2)
        assert job.events("run_closed") == [{"outcome": "succeeded", "reason": "workers_finished"}], job.standing()
        strikes = {strike.fault: strike for strike in job.marks.strikes().values()}
        outcomes = []
        for number, case in enumerate(group.cases):
            following = strikes.get(number + 1)
            outcome = _read(case, strikes[number], following.at_ms if following else 1 << 62, job.records())
            first = strikes[number].step if number else 1
            last = group.steps if following is None else following.step - 1
            outcome.equal = all(
                job.losses(rank).get(step) == whole[rank]["losses"][step]
                for rank in range(WORLD)
                for step in range(first, last + 1)
            )
            outcomes.append(outcome)
        finals = [job.entries(rank)[-1] for rank in range(WORLD)]
        if [final != whole[rank]["final"] for rank, final in enumerate(finals)] != [False] * WORLD:
            outcomes[-1].equal = False
        return outcomes


@contextlib.contextmanager
def _job(group: Group, folder: Path) -> Iterator[InjectedJob]:
    own = folder / group.name
    own.mkdir(parents=True)
    (own / "campaign.toml").write_text(group.campaign())
    tables = {**POLICY, **group.policy_tables}
    text = "".join(f"[{name}]\n{body}" for name, body in tables.items())
    (own / "policy.toml").write_text(f"schema_version = 1\n{text}")
    job = InjectedJob(
        own,
        _command(group, own),
        conf={"lm_resiliency_worker_config": str(own / "policy.toml")},
        nodes="2:9",
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminated_as_by_an_error())
        if "network_partition" in [case.effect for case in group.cases]:
            _wire(job, stack)
        stack.callback(job.stop)
        job.start_all(*NODES)
        yield job


@contextlib.contextmanager
def _terminated_as_by_an_error() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does, by way of what takes agents and namespaces away."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wire(job: InjectedJob, stack: contextlib.ExitStack) -> Namespace:
    """The second node in a namespace of its own, the others on the host's end of its cable."""
    namespace = Namespace.of(job.marks.folder, "node-2")
    stack.callback(namespace.close)
    namespace.open()
    job.endpoint = f"{namespace.host_address}:{free_port()}"
    job.environ = {**job.environ, "GLOO_SOCKET_IFNAME": namespace.name}
    return namespace


def _operate(job: InjectedJob) -> None:
    """What an operator does between two faults: a machine that was taken out is sent away, and a new one comes."""
    plans = job.plans()
    for node in set(plans[-1]["quarantined"]) & set(job.agents) if plans else ():
        agent = job.agents[node]
        if agent.process.poll() is None:
            job.kill_machine(node)
            agent.process.wait(60)
        if node not in job.sent_away:
            job.sent_away.add(node)
            job.start(f"node-{len(job.agents) + 1}")


def _read(case: Case, strike: Strike, until_ms: int, records: list[Record]) -> Outcome:
    """What the log says between this fault and the next."""
    found = Outcome(case.name)
    culprits = {str(strike.rank), strike.node}
    struck_ms = _struck_ms(strike, records)
    for record in records:
        if not strike.at_ms <= record.recorded_at_ms < until_ms and strike.rank is not None:
            continue
        kind, data = record.event.type, record.event.to_json()["data"]
        since_ms = record.recorded_at_ms - struck_ms
        if kind in ACCUSED_BY and not _is_usual(kind, data):
            named = [] if _is_echo(kind, data) else _named(data, ACCUSED_BY[kind])
            if kind in case.facts and found.detected is None and (named or not case.names):
                found.detected, found.detect_ms = kind, since_ms
                found.named, found.right = tuple(named), bool(named) and set(named) <= culprits
            found.wrong += bool(set(named) - culprits)
        elif kind == "plan_committed" and data["plan"]["action"] != "start":
            plan = data["plan"]
            if found.action is None:
                found.action, found.cause, found.decide_ms = plan["action"], plan["cause"]["kind"], since_ms
            found.wrong += bool(set(plan["cause"]["nodes"]) - culprits)
            found.steps_lost = plan["checkpoint"]["lost_steps"] if plan["checkpoint"] else found.steps_lost
        elif kind == "training_resumed" and found.action is not None:
            found.resume_ms = since_ms
    return found


def _struck_ms(strike: Strike, records: list[Record]) -> int:
    """When the run could first be hurt: a node that is set up otherwise has to be admitted for that."""
    if strike.rank is not None:
        return strike.at_ms
    joined = (r for r in records if r.event.type == "node_joined" and r.event.source == strike.node)
    return next(joined).recorded_at_ms


def _is_usual(kind: str, data: dict[str, Any]) -> bool:
    """Whether it is a check that found nothing, or a copy that is no longer needed."""
    clean = kind == "replay_checked" and data["verdict"] != "corrupt"
    return clean or (kind == "checkpoint_dropped" and data["why"] not in ("vault_lost", "digest_mismatch"))


def _is_echo(kind: str, data: dict[str, Any]) -> bool:
    """Whether it is the error of a rank that waited for another: it accuses nobody."""
    return kind == "worker_exited" and (data["error"] or {}).get("kind") == "collective"


def _named(data: dict[str, Any], key: str) -> list[str]:
    value = data.get(key)
    if value is None:
        value = data.get("ranks") or []
    return [str(one) for one in (value if isinstance(value, list) else [value]) if one != ""]


# Without it -----------------------------------------------------------------------------------------------------------

_undisturbed: dict[tuple[Any, ...], list[dict[str, Any]]] = {}


def undisturbed(group: Group, folder: Path) -> list[dict[str, Any]]:
    """Losses of every step and the last line of each rank, with nothing in the way; one run for equal trainings."""
    key = (group.steps, group.arguments)
    if key not in _undisturbed:
        own = folder / f"{group.name}-undisturbed"
        own.mkdir(parents=True)
        job = torchrun.Job(own, _command(group, own, step_s=0), nodes="1", nproc=WORLD, backend="c10d")
        try:
            job.start("alone")
            assert job.wait_exit("alone", LONG_S) == 0, job.standing()
            _undisturbed[key] = [{"losses": job.losses(rank), "final": job.entries(rank)[-1]} for rank in range(WORLD)]
        finally:
            job.stop()
    return _undisturbed[key]


def hurt(case: Case, group: Group, folder: Path) -> str:
    """What the fault does to the same training under plain torchrun, in words."""
    alone = Group(f"{case.name}-alone", (case,), arguments=group.arguments, steps_after=10)
    own = folder / alone.name
    own.mkdir()
    (own / "campaign.toml").write_text(alone.campaign())
    job = InjectedJob(own, _command(alone, own), nodes="1", nproc=WORLD, backend="c10d", options=())
    with contextlib.ExitStack() as stack:
        stack.enter_context(_terminated_as_by_an_error())
        addresses = {"node-2": ()}
        if case.effect == "network_partition":
            job.nodes, job.nproc = "2", WORLD // 2
            namespace = _wire(job, stack)
            job.conf["is_host"] = "true"  # c10d does not know the addresses of further networks,
            addresses = {  # and tells the other node this one's name, which may be localhost
                "node-1": (f"--local-addr={namespace.host_address}",),
                "node-2": (f"--local-addr={namespace.node_address}",),
            }
        stack.callback(job.stop)
        for node, job.options in addresses.items():
            job.start(node)
            # c10d gives ranks in the order of process ids: the runner's torchrun must be there before the next.
            job.wait_for(lambda node=node: len(job.processes(node)) > 1, f"{node} to start torchrun")
            job.conf.pop("is_host", None)
        return _what_became_of(case, job, lambda: undisturbed(alone, folder))


def _what_became_of(case: Case, job: InjectedJob, undisturbed: Callable[[], list[dict[str, Any]]]) -> str:
    seen, at = -1, time.monotonic()
    begun = at
    while (code := job.agents["node-2"].process.poll()) is None:
        if job.step() != seen or not job.marks.strikes():
            seen, at = job.step(), time.monotonic()
            assert job.marks.strikes() or at - begun < STRIKE_S, job.standing()
        if time.monotonic() - at > STANDSTILL_S:
            return "stands still"
        time.sleep(0.1)
    if code != 0:
        return f"ends with exit code {code}"
    whole = undisturbed()
    equal = [job.entries(rank)[-1] == whole[rank]["final"] for rank in range(WORLD)]
    if not all(equal):
        return "another result" + ("" if any(equal) else " on every rank")
    return "same result, later" if case.effect == "delay" else "nothing"


def _command(group: Group, own: Path, step_s: float = 0.05) -> list[str]:
    return [
        str(SCRIPT),
        "--out",
        str(own / "log"),
        "--steps",
        str(group.steps),
        "--step-s",
        str(step_s),
        *group.arguments,
    ]
