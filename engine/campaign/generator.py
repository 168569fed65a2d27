"""Draws failures and tells them as detectors would: late, twice, out of order, with words missing and false alarms.

The simulated fleet reacts to plans and knows no rule. Seeds reproduce: the only source of chance is the given Random.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from lmr.engine import events as ev
from lmr.engine.campaign.profiles import LOOKS_LIKE, Profile
from lmr.engine.campaign.truth import Injection

MS_PER_STEP = 1_000
CAPTURE_EVERY = 10
HOUR_MS = 3_600_000
NODE_MS = 86_400_000 * 1000

Told = tuple[int, ev.Data]
"""When the log hears of it, and what it hears."""


@dataclass(slots=True)
class Fleet:
    """Machines, their lives, and where training is."""

    profile: Profile
    random: Random
    nodes: int
    ranks_per_node: int
    now_ms: int = 1
    generation: int = -1
    slots: dict[int, str] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    lemons: set[str] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    made: int = 0
    step: int = 0
    slow_ms: int = -3_600_000
    """When a node was last taken out for being slow."""
    certified: list[int] = field(default_factory=list)
    """Steps the fleet knows to be complete and clean, newest last."""
    holders: dict[int, list[set[str]]] = field(default_factory=dict)
    """By captured step, for each slot: the machines that have its shard in memory."""
    began: int = 0
    """The step this generation was restored to."""
    surely_checked: bool = False
    """After a recovery to no newer step no check is left out: chance alone must not look like a loop."""

    def new_node(self) -> str:
        """A machine fresh from the scheduler."""
        self.made += 1
        name = f"m{self.made:05d}"
        self.lives[name] = 0
        if self.random.randrange(100) < self.profile.lemon_pct:
            self.lemons.add(name)
        return name

    def joins(self, name: str) -> ev.NodeJoined:
        """A new life of the machine."""
        self.lives[name] += 1
        self.down.discard(name)
        return ev.NodeJoined(
            node=name,
            incarnation=self.life(name),
            address="10.0.0.1",
            failure_domain=f"rack-{_rack(name)}",
            fingerprint="f",
        )

    def life(self, name: str) -> str:
        """The machine's current incarnation."""
        return f"{name}-{self.lives[name]}"

    def ranks(self, name: str) -> tuple[int, ...]:
        """Global ranks of the machine's slot."""
        slot = next(slot for slot, node in self.slots.items() if node == name)
        return tuple(range(slot * self.ranks_per_node, (slot + 1) * self.ranks_per_node))

    def trains(self) -> Iterator[Told]:
        """Training until the next failure: time passes, one or two retained steps are captured, copied and checked."""
        gap = NODE_MS * 10 // (self.profile.failures_per_1000_node_days_x10 * self.profile.fleet_nodes)
        self.now_ms += 60_000 + int(self.random.expovariate(1) * gap)
        for _ in range(self.random.choice((1, 1, 2))):
            self.step += CAPTURE_EVERY
            yield from self._captures(self.step)
            if self.random.randrange(10) or self.surely_checked:
                yield self.now_ms, self._check(self.step, "clean")
                self.certified.append(self.step)
        del self.certified[:-4]
        self.holders = {step: slots for step, slots in self.holders.items() if step in self.certified}
        self.step += self.random.randrange(1, CAPTURE_EVERY)

    def restored(self, step: int) -> None:
        """Training goes on from there."""
        self.surely_checked, self.began = step <= self.began, step
        self.step = step
        self.certified = [known for known in self.certified if known <= step]

    def forgets(self, name: str) -> None:
        """The machine's memory is gone."""
        for slots in self.holders.values():
            for machines in slots:
                machines.discard(name)

    def _captures(self, step: int) -> Iterator[Told]:
        self.holders[step] = [{name, self._replica_holder(slot)} for slot, name in self.slots.items()]
        for slot, name in self.slots.items():
            self.now_ms += 1
            digest, holder = f"{step}-{slot}", self._replica_holder(slot)
            yield (
                self.now_ms,
                ev.CheckpointCaptured(
                    generation=self.generation, step=step, slot=slot, node=name, digest=digest, bytes=1
                ),
            )
            yield (
                self.now_ms,
                ev.CheckpointReplicated(generation=self.generation, step=step, slot=slot, holder=holder, digest=digest),
            )

    def _replica_holder(self, slot: int) -> str:
        """The next slot's node in another rack: one power supply must not take both copies."""
        ring = [self.slots[(slot + ahead) % self.nodes] for ahead in range(1, self.nodes)]
        return next((name for name in ring if _rack(name) != _rack(self.slots[slot])), ring[0])

    def _check(self, step: int, verdict: str, ranks: tuple[int, ...] = ()) -> ev.ReplayChecked:
        return ev.ReplayChecked.model_validate({
            "generation": self.generation, "step": step, "recipe": "campaign", "verdict": verdict, "ranks": ranks,
            "peers": (),
        })  # fmt: skip

    def fails(self, number: int) -> tuple[Injection, list[Told]]:
        """The next failure: what is true, and what is told about it."""
        draw, look, cause = self.random.randrange(100), "", ""
        if draw < self.profile.shock_pct:
            cause, look = "rack power", "loss"
            culprits = self._whole_rack()
        elif draw < self.profile.shock_pct + self.profile.outage_pct:
            cause, look, culprits = "storage outage", "outage", set()
        elif draw >= 95:
            cause, look, culprits = "false alarm", "alarm", set()
        else:
            cause = self.random.choices(list(self.profile.causes), list(self.profile.causes.values()))[0]
            look = LOOKS_LIKE[cause]
            culprits = {self._victim()} if look not in ("echoes", "bug", "divergence") else set()
        first_bad = self.step - self.random.randrange(0, 5) if look in ("sdc", "divergence") else None
        dead = culprits if look == "loss" else set()
        safe = [
            step
            for step in self.certified
            if (first_bad is None or step < first_bad) and all(machines - dead for machines in self.holders[step])
        ]
        injection = Injection(
            number=number,
            cause=cause,
            look=look,
            culprits=frozenset(culprits),
            must_go=look in ("device", "loss", "sdc", "maintenance"),
            identified=look not in ("echoes", "alarm", "outage"),
            first_bad_step=first_bad,
            newest_safe_step=max(safe, default=0),
            step=self.step,
            failed_ms=self.now_ms,
            needs_plan=look not in ("alarm", "outage") and not (look == "straggler" and self._slow_lately()),
        )
        return injection, self._noisy(look, list(self._tell(injection)))

    def _slow_lately(self) -> bool:
        """One eviction for slowness an hour: a second slow node within it is the network's, and tolerated."""
        lately = self.now_ms - self.slow_ms <= HOUR_MS
        self.slow_ms = self.slow_ms if lately else self.now_ms
        return lately

    def _victim(self) -> str:
        names = sorted(self.slots.values())
        weights = [self.profile.lemon_factor if name in self.lemons else 1 for name in names]
        return self.random.choices(names, weights)[0]

    def _whole_rack(self) -> set[str]:
        rack = _rack(self._victim())
        return {name for name in self.slots.values() if _rack(name) == rack}

    def _tell(self, injection: Injection) -> Iterator[Told]:  # noqa: C901 - one look a case
        """The facts in the order a perfect observer would tell them."""
        at, look = self.now_ms + self.random.randrange(50, 400), injection.look
        names = sorted(injection.culprits)
        match look:
            case "device":
                yield at, ev.DeviceUnhealthy(node=names[0], device="gpu0", metric="xid", severity="fatal")
            case "loss":
                yield from self._echoes(at, set(names))
                for name in names:
                    self.down.add(name)
                    self.forgets(name)
                    at += self.random.randrange(300, 2_300) if name == names[0] else 1
                    yield at, ev.NodeLost(node=name, incarnation=self.life(name), reason="lease_expired")
            case "crash":
                yield at, self._exit(names[0], self.random.choice(self.ranks(names[0])), None)
                yield from self._echoes(at + 20, set(names))
            case "bug":
                error = ev.ExitError(kind="exception", type="KeyError", fingerprint=f"bug-{injection.number}")
                for name in self.slots.values():
                    for rank in self.ranks(name):
                        yield at, self._exit(name, rank, error)
            case "echoes":
                yield from self._echoes(at, set())
                for name in self.slots.values():
                    yield at + 700, ev.NodeConfirmed(node=name, incarnation=self.life(name))
            case "hang":
                at += 60_000
                rank = self.random.choice(self.ranks(names[0]))
                yield at, ev.RankHung(generation=self.generation, ranks=(rank,), step=self.step, stalled_ms=60_000)
                yield from self._echoes(at + 30, set())
            case "sdc":
                assert injection.first_bad_step is not None
                yield at, self._check(injection.first_bad_step, "corrupt", self.ranks(names[0]))
            case "divergence":
                assert injection.first_bad_step is not None
                world = tuple(range(self.nodes * self.ranks_per_node))
                yield at, ev.LossDiverged(generation=self.generation, step=injection.first_bad_step, ranks=world)
            case "maintenance":
                yield (
                    at,
                    ev.OperatorRequested(
                        request=f"q{injection.number}", action="replace", node=names[0], by="ops", why="maintenance"
                    ),
                )
            case "straggler":
                yield at, self._slow(names[0], 6)
            case "stall":
                yield at + 40_000, self._stall(self.ranks(names[0])[0])
            case "outage":
                for name in self.slots.values():
                    at += self.random.randrange(1, 400)
                    for rank in self.ranks(name):
                        yield at + 40_000, self._stall(rank)
            case "alarm":
                name = self._victim()
                yield at, ev.DeviceUnhealthy(node=name, device="gpu0", metric="temperature", severity="warning")
                yield at, self._slow(name, 2)
                if self.generation > 0:
                    yield at, ev.RankHung(generation=self.generation - 1, ranks=(0,), step=self.step, stalled_ms=60_000)

    def _noisy(self, look: str, told: list[Told]) -> list[Told]:
        """Duplicates, reordering among simultaneous facts, lost echoes, a device warning now and then."""
        found: list[Told] = []
        for at, data in told:
            echo = isinstance(data, ev.WorkerExited) and data.secondary
            if echo and look != "echoes" and not self.random.randrange(5):
                continue
            found.append((at + self.random.randrange(0, 5), data))
            if not self.random.randrange(8):
                found.append((at + self.random.randrange(0, 60), data))
        if not self.random.randrange(10):
            name = self._victim()
            warning = ev.DeviceUnhealthy(node=name, device="gpu1", metric="temperature", severity="warning")
            found.append((self.now_ms + 1, warning))
        return sorted(found, key=lambda item: item[0])

    def _echoes(self, at: int, silent: set[str]) -> Iterator[Told]:
        for name in self.slots.values():
            if name not in silent:
                error = ev.ExitError(kind="collective", type="RuntimeError", fingerprint="peer")
                yield at + self.random.randrange(0, 150), ev.WorkerExited(
                    generation=self.generation, node=name, ranks=self.ranks(name), exit_code=1, step=self.step,
                    error=error,
                )  # fmt: skip

    def _exit(self, name: str, rank: int, error: ev.ExitError | None) -> ev.WorkerExited:
        return ev.WorkerExited(
            generation=self.generation,
            node=name,
            rank=rank,
            exit_code=None if error is None else 1,
            signal=11 if error is None else None,
            step=self.step,
            error=error,
        )

    def _slow(self, name: str, windows: int) -> ev.RankSlowed:
        return ev.RankSlowed(
            generation=self.generation,
            rank=self.ranks(name)[0],
            component="compute",
            slowdown_pct=30,
            windows=windows,
        )

    def _stall(self, rank: int) -> ev.InputStalled:
        return ev.InputStalled(generation=self.generation, rank=rank, step=self.step, stalled_ms=40_000)


def _rack(name: str) -> int:
    return int(name[1:]) // 2
