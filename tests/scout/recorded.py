"""Streams cut from recordings of real trainings, with faults put into them by seed.

What is in a stream before its fault, and all of a clean one, is what nodes said of real ranks under load. A fault that
stops a training ends the recorded part: each rank's last summary is moved on to where it would have come to wait. A
slow rank stretches the recorded time, for itself as work and for the others as waiting.
"""

from __future__ import annotations

import copy
import functools
import json
import lzma
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmr.integrations.scout.page import Phase
from lmr.integrations.scout.pulse import stable_hash

Message = tuple[int, dict[str, Any]]
RECORDINGS = Path(__file__).parent / "recordings"
CLEAN_MS = 60_000
REPORT_MS = 500
FROZEN_MS = 100_000
"""How long a stopped training is looked at: the longest floor is 60 s."""
OTHER_CALL = stable_hash("broadcast", "torch.float32", "1")


@dataclass(frozen=True)
class Recording:
    """One training as its nodes told of it."""

    number: int
    world: int
    messages: tuple[Message, ...]

    @property
    def length_ms(self) -> int:
        """From the first message to the last."""
        return self.messages[-1][0] - self.messages[0][0]


@dataclass(frozen=True)
class Stream:
    """What RunScout hears, and what it should say of it."""

    world: int
    messages: list[Message]
    kind: str = ""
    rank: int | None = None


@functools.cache
def recordings() -> tuple[Recording, ...]:
    """All of them."""
    return tuple(_load(path) for path in sorted(RECORDINGS.glob("*.jsonl.xz")))


def _load(path: Path) -> Recording:
    about, *lines = map(json.loads, lzma.decompress(path.read_bytes()).decode().splitlines())
    world = next(line["begin"][1] for line in lines if isinstance(line, dict))
    return Recording(about["number"], world, tuple((line[0], line[1]) for line in lines if isinstance(line, list)))


def clean(seed: int) -> Stream:
    """A minute of a recording; up to a tenth of the messages are lost on their way, others are late."""
    rnd = random.Random(f"recorded clean {seed}")
    recording = rnd.choice(recordings())
    begin = recording.messages[0][0] + rnd.randrange(max(1, recording.length_ms - CLEAN_MS))
    part = [(at, message) for at, message in recording.messages if begin <= at < begin + CLEAN_MS]
    return Stream(recording.world, _transported(part, rnd))


def faulty(seed: int, kinds: list[str]) -> Stream:
    """A recording with a fault of kind `kinds[seed % len(kinds)]` in one rank."""
    rnd = random.Random(f"recorded faulty {seed}")
    kind = kinds[seed % len(kinds)]
    recording = rnd.choice(recordings())
    rank = rnd.randrange(recording.world)
    earliest = recording.messages[0][0] + rnd.randrange(15_000, 35_000)
    if kind == "slow":
        messages = _slowed(recording, rank, earliest, rnd.uniform(0.3, 1.5))
    elif kind == "nan":
        messages = _not_finite(recording, rank, earliest)
    else:
        messages = _stopped(recording, rank, earliest, kind, rnd)
    return Stream(recording.world, _transported(messages, rnd), kind, rank)


def _transported(messages: list[Message], rnd: random.Random) -> list[Message]:
    lost = rnd.uniform(0, 0.1)
    arrived = [(at + rnd.randrange(0, 200), message) for at, message in messages if rnd.random() >= lost]
    return sorted(arrived, key=lambda entry: entry[0])


# Faults that stop the training ---------------------------------------------------------------------------------------


def _stopped(recording: Recording, rank: int, earliest: int, kind: str, rnd: random.Random) -> list[Message]:
    """The recording until a moment when all ranks train, and then what is heard of ranks that do not get on."""
    number, newest = _moment(recording, earliest)
    at_ms = recording.messages[number][0]
    frozen = _standing_still(newest, rank, kind, rnd.choice((Phase.FORWARD, Phase.BACKWARD)))
    head = list(recording.messages[: number + 1])
    by_node: dict[tuple[int, ...], dict[str, Any]] = {}
    for _, message in head:
        by_node[tuple(told["rank"] for told in message["ranks"])] = message
    for ranks, message in by_node.items():
        now = at_ms + rnd.randrange(REPORT_MS)
        while now < at_ms + FROZEN_MS:
            later = {**message, "ranks": [_later(frozen[r], now - at_ms) for r in ranks]}
            head.append((now, later))
            now += int(REPORT_MS * rnd.uniform(0.95, 1.4))
    return sorted(head, key=lambda entry: entry[0])


def _moment(recording: Recording, earliest: int) -> tuple[int, dict[int, dict[str, Any]]]:
    """The first message from `earliest` on after which no rank evaluates, saves or warms up."""
    newest: dict[int, dict[str, Any]] = {}
    for number, (at, message) in enumerate(recording.messages):
        newest |= {told["rank"]: told for told in message["ranks"]}
        calm = all(told["phase"] <= Phase.OPTIMIZER and told["steps_here"] > 2 for told in newest.values())
        if at >= earliest and calm and len(newest) == recording.world:
            return number, newest
    raise ValueError(f"recording {recording.number} has no such moment")


def _standing_still(newest: dict[int, dict[str, Any]], rank: int, kind: str, phase: Phase) -> dict[int, dict[str, Any]]:
    """Where each rank comes to stand, in the newest step any of them is in."""
    step = max(told["step"] for told in newest.values())
    here = max(told["steps_here"] for told in newest.values())
    group, called, fingerprint = max((g[0], g[1], g[2]) for told in newest.values() for g in told["groups"])
    frozen = {}
    for r, told in copy.deepcopy(newest).items():
        entered, waiting, where = called, False, Phase.REDUCE
        print_here = fingerprint
        if kind in ("absent", "desync"):
            waiting, where = r != rank or kind == "desync", Phase.IDLE
            entered += waiting
            print_here = OTHER_CALL if kind == "desync" and r == rank else fingerprint
        elif r == rank:
            where = Phase.DATA if kind == "input" else phase
        done = entered - waiting
        told |= {"step": step, "steps_here": here, "micro": 0, "phase": int(where), "waiting": waiting}
        told |= {"waiting_group": group if waiting else 0, "still_ms": 0}
        told["state"] = "T" if kind == "stop" and r == rank else "S"
        told["groups"] = [[group, entered, print_here, done, told["groups"][0][4], done]]
        if waiting:
            told["recent"] = [*told["recent"], [group, entered, print_here]][-12:]
        frozen[r] = told
    return frozen


def _later(told: dict[str, Any], ms: int) -> dict[str, Any]:
    waits = told["waiting"] or told["phase"] == Phase.REDUCE
    bucket = "waited_us" if waits else "data_us" if told["phase"] == Phase.DATA else "own_us"
    return {**told, "still_ms": ms, bucket: told[bucket] + 1000 * ms}


# Faults that training goes on with -----------------------------------------------------------------------------------


def _not_finite(recording: Recording, rank: int, earliest: int) -> list[Message]:
    """One rank's loss is not finite in one step; in the next, everybody's."""
    _, newest = _moment(recording, earliest)
    first = max(told["step"] for told in newest.values()) + 1

    def told_so(told: dict[str, Any]) -> dict[str, Any]:
        bad = first if told["rank"] == rank else first + 1
        return {**told, "nonfinite_step": bad if told["step"] >= bad else None}

    return [
        (at, {**message, "ranks": [told_so(told) for told in message["ranks"]]}) for at, message in recording.messages
    ]


def _slowed(recording: Recording, rank: int, earliest: int, factor: float) -> list[Message]:
    """From `earliest` on each step takes `1 + factor` times as long, for the rank's own work: the others wait."""

    def more_us(at: int) -> int:
        return max(0, int(1000 * factor * (at - earliest)))

    def changed(told: dict[str, Any], us: int) -> dict[str, Any]:
        bucket = "own_us" if told["rank"] == rank else "waited_us"
        return {**told, bucket: told[bucket] + us}

    return [
        (at + more_us(at) // 1000, {**message, "ranks": [changed(told, more_us(at)) for told in message["ranks"]]})
        for at, message in recording.messages
    ]
