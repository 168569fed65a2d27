"""Runs a command with a campaign's faults in it, and does what trainers cannot do to themselves.

lmr inject CAMPAIGN -- torchrun ...
    |  starts it with the campaign in its environment
    |  looks for marks of its own node: kills, damages copies, pulls cables
    +- ends with the command's exit code
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmr.integrations.faults.campaign import ENV_CAMPAIGN, ENV_MARKS, Campaign, Drift, Partition, Termination
from lmr.integrations.faults.effects import EFFECTS
from lmr.integrations.faults.machine import Machine
from lmr.integrations.faults.marks import Marks, Strike
from lmr.integrations.faults.network import Namespace

LOOK_S = 0.02
BOOTSTRAP = Path(__file__).with_name("bootstrap")
KILLED = 128 + signal.SIGKILL


@dataclass
class Runner:
    """One command on one node.

    Args:
        campaign: what is to go wrong.
        path: its file, which trainers read again.
        marks: shared by all runners of the run that can see it.
        node: what this node is called.
        say: told what was done, a line each.
    """

    campaign: Campaign
    path: Path
    marks: Marks
    node: str
    say: Callable[[str], None]
    _namespace: Namespace | None = None
    _made_namespace: bool = False
    _mend_at: list[float] = field(default_factory=list)

    def run(self, command: Sequence[str]) -> int:
        """Run the command to its end; returns its exit code, 137 where the campaign killed this node.

        Raises:
            NotPossibleHere: this machine does not let a fault be made.
            OSError: the command cannot be started.
        """
        environ, arguments = self._prepared(list(command))
        process = subprocess.Popen(arguments, env=environ)
        machine = Machine(self.marks.folder, self.node)
        forwarding = {number: signal.signal(number, _forward(process)) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while process.poll() is None:
                self._look(machine)
                time.sleep(LOOK_S)
            self._look(machine)
            return process.returncode if process.returncode >= 0 else 128 - process.returncode
        finally:
            for number, handler in forwarding.items():
                signal.signal(number, handler)
            if self._namespace is not None and self._made_namespace:
                self._namespace.close()

    def _prepared(self, command: list[str]) -> tuple[dict[str, str], list[str]]:
        environ = {**os.environ, **trainer_environ(self.path, self.marks)}
        for number, fault in enumerate(self.campaign.faults):
            if fault.node != self.node:
                continue
            if isinstance(fault, Drift):
                environ |= fault.environ
                now = int(time.time() * 1000)
                self.marks.claim(Strike(number, fault.effect, None, None, self.node, os.getpid(), now), times=1)
                self.say(f"config_drift: {', '.join(sorted(fault.environ))} set on {self.node}")
            elif isinstance(fault, Partition) and self._namespace is None:
                self._namespace = Namespace.of(self.marks.folder, self.node)
                self._made_namespace = self._namespace.open()
                command = self._namespace.command(command)
                self.say(f"network_partition: {self.node} runs in the network namespace {self._namespace.name}")
        return environ, command

    def _look(self, machine: Machine) -> None:
        """Do what new marks ask for."""
        while self._mend_at and self._mend_at[0] <= time.monotonic() and self._namespace is not None:
            self._mend_at.pop(0)
            self._namespace.mend()
            self.say(f"network_partition: {self.node} is back")
        for path, strike in self.marks.strikes().items():
            if (
                strike.node != self.node
                or path.with_suffix(".done").exists()
                or not EFFECTS[strike.effect].needs_runner
            ):
                continue
            said = self._act(strike, machine)
            if said is not None:
                self.marks.done(path, said)
                self.say(f"{strike.effect}: step {strike.step} of rank {strike.rank}: {said}")

    def _act(self, strike: Strike, machine: Machine) -> str | None:
        fault = self.campaign.faults[strike.fault]
        match fault.effect:
            case "checkpoint_corruption":
                return machine.corrupt_copies()
            case "checkpoint_truncation":
                return machine.truncate_copies()
            case "checkpoint_missing":
                return machine.kill_vault()
            case "process_termination" if isinstance(fault, Termination) and fault.scope == "node":
                return machine.kill()
            case "network_partition" if isinstance(fault, Partition) and self._namespace is not None:
                self._namespace.cut()
                if fault.heal_ms is not None:
                    self._mend_at.append(time.monotonic() + fault.heal_ms / 1000)
                return "the network is down"
            case _:
                return None


def trainer_environ(campaign: Path, marks: Marks) -> dict[str, str]:
    """What a command needs in its environment so that its trainers strike themselves; the rest is the runner's."""
    return {
        ENV_CAMPAIGN: str(campaign.absolute()),
        ENV_MARKS: str(marks.folder),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(BOOTSTRAP), os.environ.get("PYTHONPATH")))),
    }


def _forward(process: subprocess.Popen[bytes]) -> Callable[[int, object], None]:
    def forward(number: int, _frame: object) -> None:
        process.send_signal(number)

    return forward


def to_stderr(line: str) -> None:
    """Where a runner speaks by default."""
    print(f"lmr inject: {line}", file=sys.stderr, flush=True)
