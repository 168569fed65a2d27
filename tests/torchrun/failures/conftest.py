"""Runs that failures are done to, one after the other, and the run of the same script that nothing happened to."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import failure_table

from lmr.integrations.operate.final_state import differences

TRAINING = Path(__file__).parents[3] / "docs" / "examples" / "pytorch_parallel.py"
PACED = Path(__file__).parent / "paced.py"
STEPS = 120
PATIENCE_S = 300.0
"""For one wait; these machines are busy."""
STILL_S = 2.0
"""So long no fact comes when nothing is captured or copied any more."""
HOST = "host"

OTHER_TABLES = "[recovery]\npublish_ms = 100\n[replay.hang]\nfloor_ms = 120000\n"
"""Ranks that a test stops are no hang."""
UNWATCHED = "[replay.continuity]\nenabled = false\n"
"""A poisoned script writes to what it trains: where it is the only rank, that is taken for damaged memory."""


def script(mode: str, folder: Path, *arguments: str) -> list[str]:
    """The training script's command line; it leaves its losses and its end in a folder."""
    out = ["--log-file", str(folder / "log"), "--final", str(folder / "final")]
    return [str(TRAINING), "--mode", mode, "--steps", str(STEPS), *arguments, *out]


class Drill:
    """One run that failures are done to, always to the machine in the last slot.

    Args:
        job: the run; its agents are started here.
        mode: how it trains.
        machines: how many there are.
        moves: whether the last slot is moved away from the machine that hosts the event log, so that it can be lost.
        plain: the run that nothing happened to.
    """

    def __init__(self, job: Any, mode: str, machines: int, moves: bool, plain: Any) -> None:
        self.job, self.mode, self._plain = job, mode, plain
        self.slot = 0 if mode == "single" else 1
        self.world = self.slot + 1
        self._lost: set[str] = set()
        self._seen = 1  # plans that were dealt with
        with self._held():
            names = [HOST, *(f"node-{number}" for number in range(1, machines))]
            job.start_all(*names[: self.world])
            self._join(*names[self.world :])
        if moves:
            self.wait_safe(1)
            job.request("replace", HOST)
            self.recovered()

    @property
    def victim(self) -> str:
        """The machine in the last slot, by the newest plan."""
        return str(self.job.active()[self.slot])

    @property
    def generation(self) -> int:
        """The newest plan's."""
        return int(self.job.plans()[-1]["to_generation"])

    @property
    def alive(self) -> list[str]:
        """Machines that were not lost, in the order they joined."""
        joined = [e["node"] for e in self.job.events("node_joined")]
        return sorted(self.job.agents.keys() - self._lost, key=lambda node: len(joined) - joined[::-1].index(node))

    @property
    def standbys(self) -> list[str]:
        """Machines that can take a slot, in the order they joined."""
        return [node for node in self.alive if node not in (HOST, *self.job.active())]

    def holders(self, step: int) -> set[str]:
        """Living machines that have a copy of the slot's state of this generation, the victim aside."""
        wanted = (self.generation, self.slot, step)
        facts = self.job.events("checkpoint_replicated")
        found = {e["holder"] for e in facts if (e["generation"], e["slot"], e["step"]) == wanted}
        return found & set(self.alive) - {self.victim}

    def captured(self) -> list[int]:
        """Steps of this generation that were captured in every slot."""
        slots: dict[int, set[int]] = {}
        for event in self.job.events("checkpoint_captured"):
            if event["generation"] == self.generation:
                slots.setdefault(event["step"], set()).add(event["slot"])
        return sorted(step for step, found in slots.items() if len(found) == self.world)

    def checked_clean(self) -> set[int]:
        """Steps of this generation that passed a check."""
        checks = self.job.events("replay_checked")
        return {e["step"] for e in checks if (e["generation"], e["verdict"]) == (self.generation, "clean")}

    def certified(self) -> list[int]:
        """Those that were captured in every slot, too."""
        clean = self.checked_clean()
        return [step for step in self.captured() if step in clean]

    def wait_safe(self, copies: int = 2) -> int:
        """Wait for a certified step of this generation of which so many machines have a copy; the newest of them."""
        self.job.wait_for(
            lambda: any(len(self.holders(step)) >= copies for step in self.certified()),
            f"a certified step on {copies} more machines",
            PATIENCE_S,
        )
        return max(step for step in self.certified() if len(self.holders(step)) >= copies)

    def stop_training(self, copies: int = 2) -> int:
        """All ranks stand still, and so many machines have a copy of the newest captured step; which step that is."""
        for rank, node in enumerate(self.job.active()):
            os.kill(self.job.trainers(node)[rank], signal.SIGSTOP)
        said, since = 0, 0.0

        def still() -> bool:
            nonlocal said, since
            if len(self.job.records()) != said:
                said, since = len(self.job.records()), time.monotonic()
            newest = self.captured()[-1]
            safe = newest in self.certified() and len(self.holders(newest)) >= copies
            return safe and time.monotonic() - since > STILL_S

        self.job.wait_for(still, f"the newest captured step on {copies} more machines", PATIENCE_S)
        return self.captured()[-1]

    def crash(self) -> None:
        """SIGKILL the last rank."""
        os.kill(self.job.trainers(self.victim)[self.slot], signal.SIGKILL)

    def lose(self) -> str:
        """The last rank's machine is gone; which one that was."""
        lost = self.victim
        self._lost.add(lost)
        self.job.kill_machine(lost)
        return lost

    def lose_until_placed(self) -> int:
        """The last rank's machine is gone, and another was given its slot; by which generation's plan."""
        self.lose()
        self.job.wait_plan(self._seen + 1, PATIENCE_S)
        self._seen += 1
        return self.generation

    def rejoin(self) -> None:
        """Lost machines come back, with empty memory, as standbys."""
        back, self._lost = sorted(self._lost), set()
        for node in back:
            self.job.agents[node].process.wait()
        with self._held():
            self._join(*back)

    def _join(self, *nodes: str) -> None:
        wanted = len(self.job.events("node_joined")) + len(nodes)
        for node in nodes:
            self.job.start(node)
        self.job.wait_joined(wanted, PATIENCE_S)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Training stands still meanwhile: machines take their time to join."""
        hold = self.job.folder / "hold"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    def recovered(self) -> dict[str, Any]:
        """Wait until training goes on by a plan that was not dealt with; that plan, the last of an incident."""
        begun = {p["to_generation"] for p in self.job.plans()[: self._seen]}

        def resumed() -> bool:
            return any(e["generation"] not in begun for e in self.job.events("training_resumed"))

        self.job.wait_for(resumed, "training to go on", PATIENCE_S)
        plans = self.job.plans()
        self._seen = len(plans)
        assert plans[-1]["checkpoint"]["step"] > 0, self.job.standing()
        return dict(plans[-1])

    @contextlib.contextmanager
    def others_vaults_stopped(self) -> Iterator[None]:
        """Meanwhile nothing is copied to, or read from, any machine but the victim."""
        vaults = [self.job.vault(node) for node in self.alive if node != self.victim]
        for vault in vaults:
            os.kill(vault, signal.SIGSTOP)
        try:
            yield
        finally:
            for vault in vaults:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(vault, signal.SIGCONT)

    def hurry(self) -> None:
        """What is left is trained at full speed."""
        (self.job.folder / "hurry").touch()

    def ends_equal(self) -> None:
        """Every loss and everything at the end equals the run that nothing happened to, bit by bit."""
        self.hurry()
        for node in self.alive:
            assert self.job.wait_exit(node, PATIENCE_S) == 0, self.job.standing()
        for rank in range(self.world):
            assert self.job.losses(rank) == self._plain.losses(rank), f"rank {rank}\n{self.job.standing()}"
            ends = [Path(job.folder, f"final.rank{rank}.pt") for job in (self._plain, self.job)]
            assert differences(*ends) == [], f"rank {rank}\n{self.job.standing()}"

    def note(self, **shown: dict[str, Any]) -> None:
        """Keep for the table by which plan training went on after each failure."""
        failure_table.note(self.mode, {name.replace("_", " "): plan for name, plan in shown.items()}, self.slot)


@pytest.fixture(scope="session")
def undisturbed_modes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The undisturbed run of each mode, once it was needed."""
    return {}


@pytest.fixture
def drill(
    job: Callable[..., Any], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, undisturbed_modes: dict[str, Any]
) -> Callable[..., Drill]:
    """Starts a run in a mode, with standbys; two of them if machines are to be lost.

    `poison_from` is a step from which on captures are not numbers, `checkpoint` are keys of the policy's table.
    """

    def undisturbed(mode: str) -> Any:
        if mode not in undisturbed_modes:
            folder = tmp_path_factory.mktemp(f"plain-{mode}") / "run"
            ranks = 1 if mode == "single" else 2
            plain = job(name=folder, command=script(mode, folder), nodes="1", nproc=ranks, backend="c10d", policy="")
            plain.start("alone")
            assert plain.wait_exit("alone", PATIENCE_S) == 0, plain.standing()
            undisturbed_modes[mode] = plain
        return undisturbed_modes[mode]

    def begin(
        mode: str, *arguments: str, standbys: int = 2, poison_from: int | None = None, checkpoint: str = ""
    ) -> Drill:
        plain = undisturbed(mode)
        alone = mode == "single"
        active, moves = (1, standbys > 1) if alone else (2, False)
        machines = active + standbys + moves
        # A single process has no peer: its copies lie on standbys, here on two of them.
        replicas = "replicas = 2\n" if alone else ""
        folder = tmp_path / "drill"
        paced = [str(PACED), "--until", str(folder / "hurry"), "--hold", str(folder / "hold")]
        tables = OTHER_TABLES
        if poison_from is not None:
            paced += ["--poison-from", str(poison_from)]
            tables += UNWATCHED
        run = job(
            name="drill",
            command=[*paced, *script(mode, folder, *arguments)],
            nodes=f"{active}:{machines}",
            nproc=1,
            policy=f"schema_version = 1\n[checkpoint]\n{replicas}{checkpoint}{tables}",
        )
        return Drill(run, mode, machines, moves, plain)

    return begin
