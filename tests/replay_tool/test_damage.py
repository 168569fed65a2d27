"""Random damage of any log kind ends in an answer or in one line: never in a traceback, never in a clean verdict."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from conftest import CORPUS, Replay

NODE_LOSS = CORPUS / "node-loss.jsonl"


def damaged(data: bytes, chance: random.Random) -> bytes:
    """`data` with some bytes changed, cut out, doubled, or the end cut off."""
    at = chance.randrange(len(data))
    match chance.randrange(4):
        case 0:
            return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + chance.randrange(1, 400) :]
        case 2:
            return data[:at] + data[max(0, at - chance.randrange(1, 400)) :]
        case _:
            return data[:at]


@pytest.mark.parametrize("kind", ["jsonl", "facts", "bundle", "sqlite"])
def test_damage_is_said_in_one_line(kind: str, tmp_path: Path, database: Path, replay: Replay) -> None:
    """Forty damages a kind, through verify and explain."""
    whole = {"jsonl": NODE_LOSS, "sqlite": database}.get(kind, tmp_path / f"whole.{kind}")
    if kind in ("facts", "bundle"):
        replay("export", NODE_LOSS, "--format", kind, "-o", whole)
    data, chance = whole.read_bytes(), random.Random(kind)
    path = tmp_path / f"damaged-{kind}"
    for _ in range(40):
        path.write_bytes(damaged(data, chance))
        for words in (("verify", path), ("explain", path, "last")):
            ran = replay(*words)
            assert ran.code in (0, 1, 2)
            assert ran.code != 2 or (ran.err.count("\n") == 1 and ran.err.startswith("lmr-replay: ")), ran.err
        for leftover in (path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            leftover.unlink(missing_ok=True)


@pytest.mark.parametrize("number", range(30))
def test_no_changed_byte_of_a_record_verifies(number: int, tmp_path: Path, replay: Replay) -> None:
    """Whatever byte of whatever record is changed to another: `verify` never says `verified`."""
    chance = random.Random(number)
    data = bytearray(NODE_LOSS.read_bytes())
    at = chance.randrange(len(data) - 1)
    data[at] = chance.choice([byte for byte in b'abc0189x"{},' if byte != data[at]])
    path = tmp_path / "changed.jsonl"
    path.write_bytes(data)
    assert replay("verify", path).code != 0
