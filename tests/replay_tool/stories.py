"""Incidents as they happen, one a cause: the facts of a run from its start to its end, told by a small builder.

`record_corpus.py` decides them and keeps the logs in `corpus/`. A story knows what the engine will do (it reports the
facts of the next generation), so a changed rule shows as facts that no longer fit.
"""

from __future__ import annotations

from collections.abc import Callable

from lmr.engine import events as e
from lmr.engine.events import Event

START_MS = 1_795_200_000_000  # 2026-11-20T18:40:00Z
Stories = dict[str, Callable[[], list[Event]]]


class Story:
    """A run of four active nodes with two ranks each and two standbys, told fact by fact."""

    def __init__(self, name: str, *, standbys: int = 2, policy: dict[str, int] | None = None, detection: bool = True):
        self.name = name
        self.at_ms = START_MS
        self.facts: list[Event] = []
        self.active = ["node-1", "node-2", "node-3", "node-4"]
        self.generation = 0
        self.say(
            e.RunOpened(
                run_id=name, min_nodes=4, max_nodes=4 + standbys, local_world_size=2, detection=detection,
                checkpointing=True, policy=dict(policy or {}),
            ),
            "decider",
        )  # fmt: skip
        for number in range(1, 5 + standbys):
            self.join(f"node-{number}", rack="a" if number <= 3 else "b")
        self.start()

    def say(self, data: e.Data, source: str | None = None, after_ms: int = 1) -> None:
        """One fact, `after_ms` later."""
        self.at_ms += after_ms
        named = source or getattr(data, "node", None) or getattr(data, "holder", None) or "decider"
        self.facts.append(Event.of(data, at_ms=self.at_ms, source=named))

    def join(self, node: str, *, rack: str = "b", life: int = 1) -> None:
        address = f"10.0.0.{node.rpartition('-')[2]}:29500"
        self.say(
            e.NodeJoined(
                node=node,
                incarnation=f"{node}/{life}",
                address=address,
                failure_domain=f"rack-{rack}",
                fingerprint="f0",
            )
        )

    def start(self) -> None:
        for node in self.active:
            self.say(e.GenerationStarted(generation=self.generation, node=node), after_ms=40)

    def next_generation(self, *, step: int, replaced: dict[str, str] | None = None, tier: str = "memory") -> None:
        """The facts of a successful recovery: workers up, state restored, training resumed."""
        self.generation += 1
        self.active = [(replaced or {}).get(node, node) for node in self.active]
        self.at_ms += 900
        self.start()
        for node in self.active:
            held = "replica" if node in (replaced or {}).values() else tier
            self.say(e.StateRestored(generation=self.generation, node=node, step=step, tier=held), after_ms=120)
        self.say(e.TrainingResumed(generation=self.generation, step=step + 1), self.active[0], after_ms=350)

    def capture(self, step: int, *, check: str | None = "clean", skip_replica: int | None = None) -> None:
        """Every slot's shard in its node's memory and the next node's; checked by a replay unless told otherwise."""
        self.at_ms += 10_000
        for slot, node in enumerate(self.active):
            digest = f"{self.name}-{self.generation}-{step}-{slot}"
            self.say(
                e.CheckpointCaptured(
                    generation=self.generation, step=step, slot=slot, node=node, digest=digest, bytes=3_221_225_472
                )
            )
            if slot != skip_replica:
                holder = self.active[(slot + 1) % 4]
                self.say(
                    e.CheckpointReplicated(
                        generation=self.generation, step=step, slot=slot, holder=holder, digest=digest
                    )
                )
        if check is not None:
            self.check(step, check)

    def check(self, step: int, verdict: str, ranks: tuple[int, ...] = ()) -> None:
        self.say(
            e.ReplayChecked(
                generation=self.generation,
                step=step,
                recipe="hidden",
                verdict=verdict,
                ranks=ranks,
                peers=tuple(range(8)),
            ),
            self.active[0],
            after_ms=600,
        )

    def exits(
        self, rank: int, *, step: int, kind: str = "exception", what: str = "RuntimeError", after_ms: int = 5,
        signal: int | None = None, fingerprint: str | None = None,
    ) -> None:  # fmt: skip
        error = e.ExitError(kind=kind, type=what, fingerprint=fingerprint or f"{kind}-{what}")
        self.say(
            e.WorkerExited(
                generation=self.generation, node=self.active[rank // 2], rank=rank,
                exit_code=None if signal is not None else 1, signal=signal, step=step, error=error,
            ),
            after_ms=after_ms,
        )  # fmt: skip

    def echoes(self, ranks: tuple[int, ...], *, step: int, after_ms: int = 75) -> None:
        for rank in ranks:
            self.exits(rank, step=step, kind="collective", after_ms=after_ms)
            after_ms = 3

    def settle(self, ms: int = 400) -> None:
        """Nothing happens for a while: whoever waits for facts to settle stops waiting."""
        self.at_ms += ms

    def finish(self, step: int) -> list[Event]:
        """Training goes on to its end."""
        self.capture(step)
        for node in self.active:
            self.say(e.WorkersFinished(generation=self.generation, node=node), after_ms=1_000)
        return self.facts


def node_loss() -> list[Event]:
    """A machine disappears. Its peers fail in the collective first, then its lease expires; a standby takes over."""
    s = Story("node-loss")
    s.capture(100)
    s.capture(110)
    s.echoes((0, 4), step=117)
    s.say(e.NodeLost(node="node-2", incarnation="node-2/1", reason="lease_expired"), "decider", after_ms=850)
    s.next_generation(step=110, replaced={"node-2": "node-5"})
    return s.finish(130)


def device_failure() -> list[Event]:
    """A GPU falls off its bus while the workers still run."""
    s = Story("device-failure")
    s.capture(500)
    s.say(e.DeviceUnhealthy(node="node-4", device="gpu:0000:3b:00", metric="xid_79", severity="fatal"), after_ms=3_000)
    s.next_generation(step=500, replaced={"node-4": "node-5"})
    return s.finish(520)


def sdc_attributed() -> list[Event]:
    """A replay check of step 1250 blames the ranks of node-4; step 1240 was certified before."""
    s = Story("sdc-attributed")
    s.capture(1_230)
    s.capture(1_240)
    s.capture(1_250, check=None)
    s.check(1_250, "corrupt", (6, 7))
    s.next_generation(step=1_240, replaced={"node-4": "node-5"})
    return s.finish(1_260)


def sdc_ambiguous() -> list[Event]:
    """Two peers disagree twice and no majority says who is wrong: first a restart, then both leave."""
    s = Story("sdc-ambiguous")
    s.capture(40)
    s.say(e.StateDiverged(generation=0, step=47, ranks=(), peers=(2, 4)), "node-2", after_ms=2_000)
    s.settle()
    s.next_generation(step=40)
    s.capture(50)
    s.say(e.StateDiverged(generation=1, step=55, ranks=(), peers=(2, 4)), "node-2", after_ms=2_000)
    s.settle()
    s.next_generation(step=50, replaced={"node-2": "node-5", "node-3": "node-6"})
    return s.finish(70)


def desync() -> list[Event]:
    """One rank issues another collective than its peers."""
    s = Story("desync")
    s.capture(300)
    s.say(e.CollectiveDesynced(generation=0, ranks=(5,), group="dp", collective_seq=9_211), "node-1", after_ms=4_000)
    s.settle()
    s.next_generation(step=300)
    return s.finish(320)


def hang() -> list[Event]:
    """A rank stops before a collective; after the restart it stops again, and its node is replaced."""
    s = Story("hang")
    s.capture(80)
    waiting = e.Collective(group="dp", seq=411, op="all_reduce")
    s.say(
        e.RankHung(generation=0, ranks=(3,), step=86, phase="backward", stalled_ms=30_000, collective=waiting),
        "node-2",
        after_ms=30_000,
    )  # fmt: skip
    s.settle()
    s.next_generation(step=80)
    s.capture(90)
    s.say(e.RankHung(generation=1, ranks=(3,), step=93, phase="backward", stalled_ms=30_000), "node-2", after_ms=30_000)
    s.settle()
    s.next_generation(step=90, replaced={"node-2": "node-5"})
    return s.finish(110)


def hang_unlocalized() -> list[Event]:
    """Nobody makes progress and nobody can be named."""
    s = Story("hang-unlocalized")
    s.capture(60)
    s.say(e.RankHung(generation=0, ranks=(), step=66, phase="forward", stalled_ms=30_000), "node-1", after_ms=30_000)
    s.settle()
    s.next_generation(step=60)
    return s.finish(80)


def input_stall() -> list[Event]:
    """One rank waits for its data loader while the others have theirs."""
    s = Story("input-stall")
    s.capture(700)
    s.capture(710, check=None)
    s.say(e.InputStalled(generation=0, rank=6, step=712, stalled_ms=20_000), "node-4", after_ms=20_000)
    s.settle(6_000)
    s.next_generation(step=710)
    return s.finish(730)


def checkpoint_stall() -> list[Event]:
    """One rank waits for checkpoint storage."""
    s = Story("checkpoint-stall")
    s.capture(900)
    s.say(e.CheckpointStalled(generation=0, rank=1, step=905, stalled_ms=60_000), "node-1", after_ms=60_000)
    s.settle(6_000)
    s.next_generation(step=900)
    return s.finish(920)


def straggler() -> list[Event]:
    """A rank computes 18 % slower for six windows in a row; the newest step is good enough to go on from."""
    s = Story("straggler")
    s.capture(2_000)
    s.capture(2_010, check=None)
    for windows in (4, 6):
        slow = e.RankSlowed(generation=0, rank=5, component="compute", slowdown_pct=18, windows=windows)
        s.say(slow, "node-1", after_ms=20_000)
    s.next_generation(step=2_010, replaced={"node-3": "node-5"})
    return s.finish(2_030)


def process_crash() -> list[Event]:
    """A worker is killed; its peers fail in the collective. The same machines go on."""
    s = Story("process-crash")
    s.capture(20)
    s.exits(3, step=27, kind="signal", what="signal 9", signal=9, after_ms=4_000)
    s.echoes((0, 1, 4, 7), step=27)
    s.settle()
    s.next_generation(step=20)
    return s.finish(40)


def software_bug() -> list[Event]:
    """Every rank raises the same error at step 33, and again after the one retry: the program, not a machine."""
    s = Story("software-bug")
    s.capture(30)
    for _ in range(2):
        for rank in range(8):
            s.exits(rank, step=33, what="IndexError", fingerprint="bug-17", after_ms=2_000 if rank == 0 else 4)
        s.settle()
        if s.generation == 0:
            s.next_generation(step=30)
    return s.facts


def numeric_divergence() -> list[Event]:
    """The loss is NaN on every rank: one rollback, and it does not come back."""
    s = Story("numeric-divergence")
    s.capture(400)
    s.say(e.LossDiverged(generation=0, step=404, ranks=tuple(range(8))), "node-1", after_ms=4_000)
    s.settle()
    s.next_generation(step=400)
    return s.finish(420)


def communication() -> list[Event]:
    """Every worker lost a peer, and every node answers: a switch hiccuped, nobody is to blame."""
    s = Story("communication")
    s.capture(50)
    s.echoes(tuple(range(8)), step=58, after_ms=5_000)
    for node in s.active:
        s.say(e.NodeConfirmed(node=node, incarnation=f"{node}/1"), after_ms=30)
    s.settle()
    s.next_generation(step=50)
    return s.finish(70)


def operator_replace() -> list[Event]:
    """An operator takes a node out for maintenance."""
    s = Story("operator-replace")
    s.capture(1_000)
    asked = e.OperatorRequested(request="r-7", action="replace", node="node-3", by="ana", why="fan tray swap")
    s.say(asked, "operator:ana", after_ms=5_000)
    s.next_generation(step=1_000, replaced={"node-3": "node-5"})
    return s.finish(1_020)


def hold_then_halt() -> list[Event]:
    """A machine is lost and no standby is left: the run holds, nobody comes, the run halts."""
    s = Story("hold-then-halt", standbys=0, policy={"standby_wait_s": 60})
    s.capture(10)
    s.say(e.NodeLost(node="node-1", incarnation="node-1/1", reason="link_closed"), "decider", after_ms=2_000)
    s.say(e.NodeCordoned(node="node-4", by="ana", why="noisy neighbour"), "operator:ana", after_ms=61_000)
    return s.facts


def restore_ladder() -> list[Event]:
    """The first source of a shard has a wrong digest: the next source of the step is used."""
    s = Story("restore-ladder")
    s.capture(100)
    s.capture(110)
    s.exits(2, step=115, kind="out_of_memory", what="OutOfMemoryError", after_ms=3_000)
    s.settle()
    s.generation = 1
    s.at_ms += 900
    s.start()
    failed = e.RestoreFailed(
        generation=1, node="node-2", step=110, slot=1, holder="node-2", tier="memory", why="digest_mismatch"
    )
    s.say(failed, after_ms=150)
    s.next_generation(step=110)
    return s.finish(130)


def lemon_node() -> list[Event]:
    """One node crashes three times within the hour: two restarts in place, then it is replaced."""
    s = Story("lemon-node")
    s.capture(10)
    for number in range(3):
        step = 10 + 10 * number
        s.exits(4, step=step + 3, kind="signal", what="signal 11", signal=11, after_ms=60_000)
        s.settle()
        s.next_generation(step=step, replaced={"node-3": "node-5"} if number == 2 else None)
        s.capture(step + 10)
    return s.finish(60)


STORIES: Stories = {
    story.__name__.replace("_", "-"): story
    for story in (
        node_loss, device_failure, sdc_attributed, sdc_ambiguous, desync, hang, hang_unlocalized, input_stall,
        checkpoint_stall, straggler, process_crash, software_bug, numeric_divergence, communication, operator_replace,
        hold_then_halt, restore_ladder, lemon_node,
    )
}  # fmt: skip
"""Name to story; the name is the run's id and the file's name in `corpus/`."""
