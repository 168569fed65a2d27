"""The closed loop on this machine: kill a worker, kill a machine, flip a bit, and training goes on from safe state.

Three torchrun agents stand for three machines: two train, one is the standby. First one worker is killed with SIGKILL,
then everything that runs on the machine that does not host the rendezvous; it comes back as the standby. Then one bit
of one parameter flips in the memory of the machine that took its place, and nothing crashes: SCOUT names the machine.
What training leaves behind is compared, bit by bit, with an uninterrupted run of the same script.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lmr.engine.events import RunClosed
from lmr.engine.plan import Plan
from lmr.engine.record import Record
from lmr.integrations.faults.marks import Marks
from lmr.integrations.faults.runner import trainer_environ
from lmr.integrations.operate.cluster import Cluster, ClusterFailed
from lmr.integrations.operate.final_state import differences, last_losses, newest_step
from lmr.integrations.operate.phases import Recovery, recoveries
from lmr.replay_tool.standard_output import PlainConsole

TRAINING = Path(__file__).with_name("training_example.py")
RANKS = 4
POLICY = """\
schema_version = 1
interval = 1

[recovery]
publish_ms = 200  # short steps: retain five a second

[replay.pulse]
report_ms = 100  # and hear of each before the next is retained
"""
VICTIM = "node-2"
SUBSTITUTE = "node-3"
TRAIN_S = 240.0
BIT_FLIP = """\
schema_version = 1
seed = 3

[[faults]]
effect = "tensor_corruption"
node = "{node}"
rank = {rank}
step = {step}
"""


class DemoFailed(Exception):
    """The demo did not show what it claims; the message says why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `lmr demo`."""
    parser.add_argument("--steps", type=int, default=320, help="optimizer steps to train (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="keep everything in this new folder (default: a temporary one)")


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 when everything held, 1 with the reason otherwise."""
    console = PlainConsole(highlight=False, soft_wrap=True)
    if args.steps < 60:
        console.print("lmr demo: --steps must be at least 60: three failures and a recovery after each need room")
        return 2
    try:
        if args.folder is not None:
            args.folder.mkdir(parents=True, exist_ok=False)
            _demo(args.folder.absolute(), args.steps, console)
        else:
            with tempfile.TemporaryDirectory(prefix="lmr-demo-") as folder:
                _demo(Path(folder), args.steps, console)
    except FileExistsError:
        console.print(f"lmr demo: {args.folder} is already there; name a new folder")
        return 2
    except (DemoFailed, ClusterFailed) as failed:
        console.print(f"[bold red]demo failed:[/] {failed}", markup=True)
        return 1
    return 0


def _demo(folder: Path, steps: int, console: Console) -> None:
    started = time.monotonic()
    console.print(f"[bold]1[/]  An uninterrupted run of the same script: {steps} steps on {RANKS} ranks")
    plain = _uninterrupted(folder / "uninterrupted", steps)
    console.print("[bold]2[/]  The same under lm_resiliency: two machines train, one stands by")
    records = _interrupted(folder / "closed-loop", steps, console)
    console.print("[bold]3[/]  What the engine decided")
    _tell_plans(records, console)
    console.print("[bold]4[/]  Compared with the uninterrupted run")
    _compare(plain, folder / "closed-loop", steps, console)
    console.print("[bold]5[/]  Every decision computed again from the facts before it")
    _verify(folder / "closed-loop" / "events.db", console)
    console.print(f"[bold green]The loop is closed.[/] {time.monotonic() - started:.0f} s")


def _command(folder: Path, steps: int) -> list[str]:
    return [str(TRAINING), "--steps", str(steps), "--log-file", str(folder / "log"), "--final", str(folder / "final")]


def _uninterrupted(folder: Path, steps: int) -> Path:
    options = ("--monitor-interval=0.1",)
    with Cluster(
        folder, _command(folder, steps), run_id="plain", nodes="1", nproc=RANKS, options=options, backend="c10d"
    ) as plain:
        plain.start("alone")
        if plain.wait_exit("alone", TRAIN_S) != 0:
            raise DemoFailed(f"the uninterrupted run failed\n{plain.standing()}")
    return folder


def _interrupted(folder: Path, steps: int, console: Console) -> list[Record]:
    folder.mkdir(parents=True)
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    conf = {"store_type": "tcp", "lm_resiliency_worker_config": str(policy)}
    campaign, marks = folder / "campaign.toml", Marks(folder / "marks")
    flip_step = steps * 7 // 8  # late enough for the repaired machine to have joined
    campaign.write_text(BIT_FLIP.format(node=SUBSTITUTE, rank=RANKS - 1, step=flip_step))
    with Cluster(folder, _command(folder, steps), run_id=f"demo-{os.getpid()}", conf=conf) as cluster:
        console.print(f"   $ {' '.join(cluster.arguments())}", style="dim")
        for count, node in enumerate(("node-1", VICTIM, SUBSTITUTE), 1):
            cluster.start(node, **(trainer_environ(campaign, marks) if node == SUBSTITUTE else {}))
            _wait_joined(cluster, count, node)
        rank0 = folder / "log.rank0.jsonl"
        _train_until(cluster, rank0, steps * 3 // 16)
        rank, pid = max(cluster.trainers(VICTIM).items())
        console.print(f"   step {newest_step(rank0)}: SIGKILL to the worker of rank {rank} on {VICTIM} (pid {pid})")
        os.kill(pid, signal.SIGKILL)
        _wait_resumed(cluster, 1)
        _train_until(cluster, rank0, steps * 3 // 8)
        console.print(f"   step {newest_step(rank0)}: SIGKILL to everything on {VICTIM}: the machine is gone")
        cluster.kill_machine(VICTIM)
        _wait_resumed(cluster, 2)
        console.print(f"   step {newest_step(rank0)}: {VICTIM} was repaired and comes back as the standby")
        cluster.start(VICTIM)
        _wait_joined(cluster, 4, VICTIM)
        cluster.wait_for(lambda: bool(marks.strikes()), f"step {flip_step}", TRAIN_S)
        struck = next(iter(marks.strikes().values()))
        where = f"{SUBSTITUTE} (rank {struck.rank})"
        console.print(f"   step {struck.step}: one bit of one parameter flips on {where}; nothing crashes")
        _wait_resumed(cluster, 3)
        for node in ("node-1", VICTIM):
            code = cluster.wait_exit(node, TRAIN_S)
            if code != 0:
                raise DemoFailed(f"the agent of {node} ended with exit code {code}\n{cluster.standing()}")
        return cluster.records()


def _wait_joined(cluster: Cluster, count: int, node: str) -> None:
    cluster.wait_for(lambda: _joined(cluster) >= count, f"{node} to join")


def _joined(cluster: Cluster) -> int:
    return sum(record.event.type == "node_joined" for record in cluster.records())


def _train_until(cluster: Cluster, rank0: Path, step: int) -> None:
    cluster.wait_for(lambda: newest_step(rank0) >= step, f"step {step}", TRAIN_S)


def _wait_resumed(cluster: Cluster, generation: int) -> None:
    def resumed() -> bool:
        for record in cluster.records():
            if isinstance(record.event.data, RunClosed):
                raise DemoFailed(f"the run closed: {record.event.data.reason}\n{cluster.standing()}")
            if record.event.type == "training_resumed" and record.event.to_json()["data"]["generation"] == generation:
                return True
        return False

    cluster.wait_for(resumed, f"training to resume in generation {generation}", TRAIN_S)


def _tell_plans(records: list[Record], console: Console) -> None:
    found = recoveries(records)
    for recovery in found:
        console.print(f"   {_in_words(recovery.plan)}")
    wanted = ["restart", "replace", "replace"]
    actions = [recovery.plan.action for recovery in found]
    if actions != wanted:
        raise DemoFailed(f"expected the plans {wanted}, the log has {actions}")
    flipped = found[2].plan
    if (flipped.cause.kind, flipped.cause.nodes, flipped.cause.ranks) != ("sdc", (SUBSTITUTE,), (RANKS - 1,)):
        raise DemoFailed(f"the flipped bit was to be found on {SUBSTITUTE}, the plan says {flipped.cause}")
    replaced = found[1].plan
    lost_slot = next(a.slot for a in found[0].plan.assignments if a.node == VICTIM)
    source = (
        next((s for s in replaced.checkpoint.sources if s.slot == lost_slot), None) if replaced.checkpoint else None
    )
    if source is None or source.tier != "replica":
        raise DemoFailed(f"slot {lost_slot} was to come from a replica in memory, the plan says {source}")
    console.print(_phase_table(found))
    closed = [record.event.data for record in records if isinstance(record.event.data, RunClosed)]
    if not closed or closed[0].outcome != "succeeded":
        raise DemoFailed(f"the run did not close as succeeded: {closed}")


def _in_words(plan: Plan) -> str:
    who = ", ".join(plan.cause.nodes) or "nobody"
    ranks = f" (rank {', '.join(map(str, plan.cause.ranks))})" if plan.cause.ranks else ""
    text = f"{plan.action}: {plan.cause.kind.replace('_', ' ')}, blamed on {who}{ranks}; "
    text += "machines " + ", ".join(a.node for a in sorted(plan.assignments, key=lambda a: a.slot))
    if plan.quarantined:
        text += f"; quarantined {', '.join(plan.quarantined)}"
    if plan.checkpoint is not None:
        shards = ", ".join(f"slot {s.slot} from {s.holder}'s {s.tier}" for s in plan.checkpoint.sources)
        text += f"; from step {plan.checkpoint.step} ({plan.checkpoint.trust}, {plan.checkpoint.lost_steps} steps lost)"
        text += f": {shards}" if shards else ""
    return text


def _phase_table(found: list[Recovery]) -> Table:
    table = Table("recovery", "detected", "decided", "workers up", "restored", "first step", "steps lost", box=None)
    for recovery in found:
        times = [f"+{ms} ms" if ms is not None else "-" for ms in recovery.since_detected().values()]
        lost = recovery.plan.checkpoint.lost_steps if recovery.plan.checkpoint is not None else 0
        table.add_row(recovery.plan.action, "0 ms", *times, str(lost))
    return table


def _compare(plain: Path, closed_loop: Path, steps: int, console: Console) -> None:
    for rank in range(RANKS):
        name = f"final.rank{rank}.pt"
        different = differences(plain / name, closed_loop / name)
        if different:
            raise DemoFailed(f"rank {rank}: the final state differs in {len(different)} places: {different[:5]}")
        log = f"log.rank{rank}.jsonl"
        mine, theirs = last_losses(plain / log), last_losses(closed_loop / log)
        if mine.keys() != set(range(1, steps + 1)) or mine != theirs:
            wrong = sorted(step for step in mine.keys() | theirs.keys() if mine.get(step) != theirs.get(step))
            raise DemoFailed(f"rank {rank}: the loss differs at steps {wrong[:5]}")
    console.print(
        f"   bitwise equal on {RANKS} ranks: every parameter, optimizer tensor, scheduler and RNG state, "
        f"and the loss of each of the {steps} steps"
    )


def _verify(event_log: Path, console: Console) -> None:
    command = [str(Path(sys.executable).with_name("lmr-replay")), "verify", str(event_log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    console.print(f"   $ lmr-replay verify {event_log}", style="dim")
    for line in (done.stdout + done.stderr).strip().splitlines():
        console.print(f"   {line}", markup=False)
    if done.returncode != 0:
        raise DemoFailed(f"lmr-replay verify ended with exit code {done.returncode}")
