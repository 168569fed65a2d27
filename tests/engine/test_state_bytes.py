"""A state becomes bytes and comes back: equal, in canonical form, deciding on as the original would."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmr.engine import State, apply, decide, next_deadline
from lmr.engine.canonical import canonical_bytes, parse_canonical
from lmr.engine.errors import StateUnreadable
from lmr.engine.record import Record, open_record, record_hash
from lmr.engine.state_bytes import _hints, layout, state_bytes, state_of

CORPUS = sorted((Path(__file__).parents[1] / "replay_tool" / "corpus").glob("*.jsonl"))


def _records(path: Path) -> Iterator[Record]:
    for line in path.read_bytes().splitlines():
        envelope = json.loads(line)
        prev_hash, _ = envelope.pop("prev_hash"), envelope.pop("hash")
        body = canonical_bytes(envelope)
        yield open_record(body, prev_hash, record_hash(prev_hash, body))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_every_state_of_a_recorded_log_comes_back_and_decides_on_alike(path: Path) -> None:
    state, copy = State(), State()
    for record in _records(path):
        apply(state, record)
        apply(copy, record)
        data = state_bytes(state)
        assert state_bytes(copy) == data
        copy = state_of(data)
        assert copy == state
        assert state_bytes(copy) == data
        assert decide(copy) == decide(state)
        assert next_deadline(copy) == next_deadline(state)
    assert state.seq > 20


def test_what_is_no_state_of_ours_is_refused() -> None:
    said = parse_canonical(state_bytes(State()))
    for wrong in (
        b"",
        b"6",
        b"{}",
        canonical_bytes(said | {"lmr_state": 2}),
        canonical_bytes(said | {"layout": "0" * 64}),
        canonical_bytes(said | {"state": said["state"] | {"seq": "1"}}),
        canonical_bytes(said | {"state": {"seq": 1}}),
    ):
        with pytest.raises(StateUnreadable):
            state_of(wrong)


def test_another_field_is_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealed states outlive versions: one with other fields must not be read as if it had ours."""
    before = state_bytes(State())
    ours = layout()
    assert layout.__wrapped__() == ours
    monkeypatch.setitem(State.__annotations__, "seq", str)
    for cached in (layout, _hints):
        cached.cache_clear()
    try:
        assert layout() != ours
        with pytest.raises(StateUnreadable, match="other fields"):
            state_of(before)
    finally:
        monkeypatch.undo()
        for cached in (layout, _hints):
            cached.cache_clear()


def test_the_layout_of_this_version_is_recorded() -> None:
    """A changed State changes this digest: say so here, so that it is known that older seals cannot be gone on from."""
    assert layout() == "b75ab2826519a036e2d260f749ef4766e726d7191550e10dd3b5dc00ddd15f13"
