"""Copies on disk: complete or not there, checked when read, and there after everything in memory is gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from node_double import NodeDouble
from plain_trainer import PlainTrainer, content
from vault_story import MakeNode, captured_pair, damage_one_byte

from lmr.replay_tool.verbs.anchors import Anchor, read_anchors

SIZE = (64 * 1024, 32 * 1024)


@pytest.fixture
def spill(tmp_path: Path, make_node: MakeNode) -> Callable[..., NodeDouble]:
    """A node whose slot 0 has these steps on disk."""

    def make(*steps: int, **checkpoint: int) -> NodeDouble:
        node: NodeDouble = make_node(name="keeper", disk_folder=str(tmp_path / "disk"), **checkpoint)
        node.enter(0, 0, [0, 1])
        for step in steps:
            for trainer in captured_pair(node, step):
                trainer.close()
            node.tell({"kind": "retain", "steps": [step], "spill": step})
            node.wait_fact("checkpoint_flushed", step=step, slot=0)
        return node

    return make


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "test-run" / "keeper"


def restart(node: NodeDouble, make_node: MakeNode, **checkpoint: int) -> NodeDouble:
    """The machine was off: nothing in memory is left."""
    node.vault.kill()
    node.vault.wait()
    return make_node(name=node.name, **{**node.policy["checkpoint"], **checkpoint})


def test_a_manifest_names_the_log_it_belongs_to(make_node: MakeNode, tmp_path: Path) -> None:
    """The head of the log when the generation began: an anchor that `lmr-replay verify --anchors` compares."""
    node: NodeDouble = make_node(name="keeper", disk_folder=str(tmp_path / "disk"))
    node.enter(0, 0, [0, 1], head={"seq": 6, "hash": "ab" * 32})
    for trainer in captured_pair(node, 7):
        trainer.close()
    node.tell({"kind": "retain", "steps": [7], "spill": 7})
    node.wait_fact("checkpoint_flushed", step=7, slot=0)
    (manifest,) = folder_of(tmp_path).glob("*.json")
    assert read_anchors(manifest, "test-run") == [Anchor(manifest.name, 6, "ab" * 32)]


def test_a_spilled_step_outlives_the_vault_and_is_announced_and_restored(spill, make_node, tmp_path) -> None:
    node = spill(7)
    digest = node.facts("checkpoint_captured", step=7)[0]["digest"]
    assert node.facts("checkpoint_flushed") == [
        {"generation": 0, "step": 7, "slot": 0, "holder": "keeper", "digest": digest}
    ]
    again = restart(node, make_node)
    assert again.held == [{"kind": "checkpoint_flushed", "data": node.facts("checkpoint_flushed")[0]}]
    again.enter(1, 0, [0, 1], step=7, tier="disk")
    again.vault_says.wait(kind="restorable", step=7, tier="disk")
    again.tell({"kind": "load", "generation": 1})
    for rank in (0, 1):
        restored, body = PlainTrainer(again.vault_socket, rank, generation=1).read(7)
        assert body == content(rank, 7, *SIZE)
        assert (restored.tier, restored.holder) == ("disk", "keeper")


def test_another_node_fetches_what_is_only_on_a_disk(spill, make_node) -> None:
    holder = restart(spill(7), make_node, chunk_bytes=64 * 1024)
    taker = make_node()
    taker.enter(1, 0, [0, 1], step=7, holder=holder, tier="disk")
    taker.vault_says.wait(kind="restorable", step=7, tier="disk")
    taker.tell({"kind": "load", "generation": 1})
    assert PlainTrainer(taker.vault_socket, 1, generation=1).read(7)[1] == content(1, 7, *SIZE)


def cut_off(shards: Path, _manifest: Path) -> None:
    shards.write_bytes(shards.read_bytes()[:-1])


def flip_a_byte(shards: Path, _manifest: Path) -> None:
    body = bytearray(shards.read_bytes())
    body[1000] ^= 1
    shards.write_bytes(bytes(body))


def remove(shards: Path, _manifest: Path) -> None:
    shards.unlink()


def flip_a_digest(_shards: Path, manifest: Path) -> None:
    body = json.loads(manifest.read_text())
    body["copy"]["shards"][0][1][0] = "0" * 32
    manifest.write_text(json.dumps(body))


@pytest.mark.parametrize(
    ("damage", "why"), [(cut_off, "digest_mismatch"), (flip_a_byte, "digest_mismatch"), (remove, "missing")]
)
def test_damage_while_the_vault_lives_is_named_and_nobody_loads_it(spill, make_node, tmp_path, damage, why) -> None:
    node = restart(spill(7), make_node)
    folder = folder_of(tmp_path)
    damage(*folder.glob("*.shards"), *folder.glob("*.json"))
    node.enter(1, 0, [0, 1], step=7, tier="disk")
    failure = node.vault_says.wait(kind="restore_failed")[0]
    assert (failure["why"], failure["tier"], failure["holder"]) == (why, "disk", "keeper")
    assert node.wait_fact("checkpoint_dropped", tier="disk")["why"] == why
    said = [
        m for m in node.vault_says.messages if m["kind"] == "restore_failed" or m.get("type") == "checkpoint_dropped"
    ]
    assert [m["kind"] for m in said] == ["restore_failed", "fact"], "the log marks this copy, not others of the node"
    assert list(folder.iterdir()) == [], "what cannot be read takes no room"


@pytest.mark.parametrize("damage", [cut_off, remove, flip_a_digest])
def test_damage_found_at_the_start_is_not_announced(spill, make_node, tmp_path, damage) -> None:
    node = spill(6, 7)
    damage(*folder_of(tmp_path).glob("*7.slot*.shards"), *folder_of(tmp_path).glob("*7.slot*.json"))
    again = restart(node, make_node)
    assert [held["data"]["step"] for held in again.held] == [6]


def test_a_write_that_was_cut_off_leaves_no_copy(spill, make_node, tmp_path) -> None:
    node = spill(7)
    whole = next(folder_of(tmp_path).glob("*.shards"))
    part = folder_of(tmp_path) / "step-00000009.slot-0.generation-0.shards.part"
    part.write_bytes(whole.read_bytes()[:100])
    without_manifest = folder_of(tmp_path) / "step-00000008.slot-0.generation-0.shards"
    without_manifest.write_bytes(whole.read_bytes())
    again = restart(node, make_node)
    assert [held["data"]["step"] for held in again.held] == [7]
    assert not part.exists()


def test_older_steps_are_deleted_and_said(spill, tmp_path) -> None:
    node = spill(5, 6, 7, disk_keep=2)
    assert node.wait_fact("checkpoint_dropped", tier="disk") == {
        "generation": 0,
        "step": 5,
        "slot": 0,
        "holder": "keeper",
        "tier": "disk",
        "why": "superseded",
    }
    assert sorted(path.name[:13] for path in folder_of(tmp_path).glob("*.json")) == ["step-00000006", "step-00000007"]


def test_a_step_above_the_restored_one_leaves_the_disk(spill) -> None:
    node = spill(6, 7)
    node.enter(1, 0, [0, 1], step=6)
    assert node.wait_fact("checkpoint_dropped", tier="disk")["step"] == 7


def test_another_event_log_of_the_same_run_does_not_meet_old_copies(spill, make_node, tmp_path) -> None:
    node = spill(7)
    node.enter(0, 0, [0, 1], history="another log")
    assert {d["tier"] for d in node.facts("checkpoint_dropped", why="another_history")} <= {"memory", "disk"}
    node.wait_fact("checkpoint_dropped", tier="disk", why="another_history")
    node.wait_fact("checkpoint_dropped", tier="memory", why="another_history")
    assert list(folder_of(tmp_path).iterdir()) == []


def test_a_disk_that_cannot_be_written_degrades_and_training_goes_on(make_node, tmp_path) -> None:
    (tmp_path / "disk").write_text("a file where the folder should be")
    node = make_node(name="keeper", disk_folder=str(tmp_path / "disk"))
    node.enter(0, 0, [0, 1])
    trainers = captured_pair(node, 7)
    node.tell({"kind": "retain", "steps": [7], "spill": 7})
    said = node.vault_says.wait(kind="degraded")[0]
    assert said["what"] == "step 7 on disk"
    assert trainers[0].capture(8)
    assert node.facts("checkpoint_flushed") == []


def test_a_replica_goes_to_its_holders_disk_too(spill, make_node, tmp_path) -> None:
    holder = make_node(name="holder", disk_folder=str(tmp_path / "disk"))
    holder.enter(0, 1, [2, 3])
    owner = make_node()
    owner.enter(0, 0, [0, 1], replicate_to=[holder])
    captured_pair(owner, 7)
    holder.wait_fact("checkpoint_replicated", step=7)
    holder.tell({"kind": "retain", "steps": [7], "spill": 7})
    assert holder.wait_fact("checkpoint_flushed", step=7)["slot"] == 0


@pytest.mark.parametrize(("forget", "left"), [(True, 0), (False, 1)])
def test_what_a_run_that_succeeded_left_on_disk_goes_with_it(spill, tmp_path, forget, left) -> None:
    node = spill(7)
    node.tell({"kind": "close", "forget": forget})
    assert node.vault.wait(10) == 0
    assert len(list((tmp_path / "disk").glob("*/*/*.json"))) == left
    assert (tmp_path / "disk" / "test-run").exists() == bool(left)


@pytest.mark.parametrize("damage", [cut_off, remove, flip_a_digest])
def test_damaged_copies_go_with_a_run_that_succeeded_too(spill, make_node, tmp_path, damage) -> None:
    node = spill(6, 7)
    damage(*folder_of(tmp_path).glob("*7.slot*.shards"), *folder_of(tmp_path).glob("*7.slot*.json"))
    again = restart(node, make_node)
    again.tell({"kind": "close", "forget": True})
    assert again.vault.wait(10) == 0
    assert list((tmp_path / "disk").iterdir()) == []


def test_damaged_memory_with_a_sound_copy_on_disk(spill) -> None:
    """The plan names the memory: that it failed is said, and the next plan finds the disk untouched."""
    node = spill(7)
    damage_one_byte(node, 0, 7)
    node.enter(1, 0, [0, 1], step=7)
    assert node.vault_says.wait(kind="restore_failed")[0]["tier"] == "memory"
    node.enter(2, 0, [0, 1], step=7, tier="disk")
    node.vault_says.wait(kind="restorable", generation=2, tier="disk")
    assert not node.facts("checkpoint_dropped", tier="disk")
