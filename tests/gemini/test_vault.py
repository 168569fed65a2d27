"""The vault as a process: what it keeps, what it gives back and what it refuses. Only agent and torch are doubled."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from plain_trainer import PlainTrainer, content, vault_memory
from vault_story import MakeNode, captured_pair, damage_one_byte, wait_until

from lmr.integrations.gemini.client import VaultClient
from lmr.integrations.gemini.errors import GenerationOver, ShardMismatch, StaleGeneration, VaultUnavailable
from lmr.integrations.gemini.shard import Layout, Wanted
from lmr.integrations.torchrun import local_socket

# What is published -------------------------------------------------------------------------------------------------


def test_a_step_is_published_once_every_rank_of_the_slot_has_captured_it(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0, 1])
    first, second = (PlainTrainer(node.vault_socket, rank) for rank in (0, 1))
    node.tell({"kind": "pin", "step": 3})
    assert first.capture(3)
    time.sleep(0.2)
    assert node.facts("checkpoint_captured") == []
    assert second.capture(3)
    fact = node.wait_fact("checkpoint_captured")
    assert (fact["generation"], fact["step"], fact["slot"], fact["node"]) == (0, 3, 0, "node-0")
    assert fact["bytes"] > 2 * 64 * 1024
    assert len(fact["digest"]) == 32


def test_only_pinned_steps_are_published(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0])
    trainer = PlainTrainer(node.vault_socket, 0)
    for step in (1, 2, 3):
        assert trainer.capture(step)
    node.tell({"kind": "pin", "step": 5})
    for step in (4, 5, 6):
        assert trainer.capture(step)
    node.wait_fact("checkpoint_captured", step=5)
    assert [fact["step"] for fact in node.facts("checkpoint_captured")] == [5]


def test_a_step_that_has_just_passed_can_still_be_pinned(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0])
    trainer = PlainTrainer(node.vault_socket, 0)
    for step in range(1, 10):
        assert trainer.capture(step)
    node.tell({"kind": "pin", "step": 8})
    node.wait_fact("checkpoint_captured", step=8)


def test_flush_publishes_what_is_held_and_then_says_so(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0, 1])
    trainers = [PlainTrainer(node.vault_socket, rank) for rank in (0, 1)]
    for step in (1, 2):
        for trainer in trainers:
            assert trainer.capture(step)
    assert trainers[0].capture(3)
    node.vault_says.wait(kind="progress")
    node.tell({"kind": "flush"})
    node.vault_says.wait(kind="flushed")
    kinds = [m.get("type", m["kind"]) for m in node.vault_says.messages]
    assert {fact["step"] for fact in node.facts("checkpoint_captured")} == {1, 2}, "step 3 lacks a rank"
    assert kinds.index("flushed") > max(i for i, kind in enumerate(kinds) if kind == "checkpoint_captured")


def test_shared_parts_are_compared_by_digest(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0, 1])
    for trainer in [PlainTrainer(node.vault_socket, rank) for rank in (0, 1)]:
        assert trainer.capture(1, peers=[0, 1, 2, 3])
    found = node.vault_says.wait(kind="digests", step=1)[0]["ranks"]
    assert found["0"]["peers"] == found["1"]["peers"] == [0, 1, 2, 3]
    assert found["0"]["digest"] == found["1"]["digest"]


def test_a_step_the_script_saves_is_measured_for_certain(make_node: MakeNode) -> None:
    """Whether its capture is still to come or was handed over already; only that of both ranks counts."""
    node = make_node()
    node.enter(0, 0, [0, 1])
    first, second = (PlainTrainer(node.vault_socket, rank) for rank in (0, 1))
    for trainer in (first, second):
        trainer.client.check(1)
        assert trainer.capture(1)
        assert trainer.capture(2)
    assert node.vault_says.wait(kind="digests", step=1)[0]["saved"]
    assert not node.vault_says.wait(kind="digests", step=2)[0]["saved"]
    second.client.check(2)
    assert node.vault_says.wait(kind="digests", step=2, count=2)[1]["saved"]
    assert node.facts("checkpoint_captured") == [], "it is not kept for that"


# Memory stays bounded ----------------------------------------------------------------------------------------------


def test_a_rank_never_has_more_buffers_than_the_policy_says(make_node: MakeNode) -> None:
    node = make_node(buffers=4)
    node.enter(0, 0, [0])
    trainer = PlainTrainer(node.vault_socket, 0)
    for step in range(1, 60):
        trainer.capture(step)
    assert len(vault_memory(node.vault.pid)) <= 4


def test_pinned_and_retained_steps_outlive_later_captures(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0])
    trainer = PlainTrainer(node.vault_socket, 0)
    node.tell({"kind": "pin", "step": 2})
    for step in range(1, 20):
        trainer.capture_soon(step)
    node.wait_fact("checkpoint_captured", step=2)
    node.tell({"kind": "retain", "steps": [2]})
    for step in range(20, 40):
        trainer.capture_soon(step)
    assert node.facts("checkpoint_dropped") == []
    node.tell({"kind": "pin", "step": 41})
    for step in range(40, 43):
        trainer.capture_soon(step)
    node.wait_fact("checkpoint_captured", step=41)
    node.tell({"kind": "retain", "steps": [41]})
    for step in range(43, 50):
        trainer.capture_soon(step)
    dropped = node.wait_fact("checkpoint_dropped", step=2)
    assert (dropped["tier"], dropped["why"], dropped["holder"]) == ("memory", "superseded", "node-0")


def test_a_trainer_without_a_free_buffer_is_told_and_goes_on(make_node: MakeNode) -> None:
    node = make_node(buffers=3)
    node.enter(0, 0, [0])
    trainer = PlainTrainer(node.vault_socket, 0)
    node.tell({"kind": "retain", "steps": [1, 2]})
    node.tell({"kind": "pin", "step": 3})
    took = [trainer.capture(step, patience_s=1.0) for step in (1, 2, 3)]
    assert took == [True, True, True]
    began = time.monotonic()
    assert not trainer.capture(4)
    assert time.monotonic() - began < 1.0, "the refusal must come at once"
    node.tell({"kind": "retain", "steps": [3]})
    wait_until(lambda: trainer.capture(5, patience_s=0.05), "the buffer that became free is granted")


def test_state_that_outgrows_its_buffers_gets_larger_ones(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0])
    small = PlainTrainer(node.vault_socket, 0)
    assert small.capture(1)
    large = PlainTrainer(node.vault_socket, 0, nbytes=1024 * 1024)
    node.tell({"kind": "pin", "step": 2})
    assert large.capture(2)
    assert node.wait_fact("checkpoint_captured", step=2)["bytes"] > 1024 * 1024


# Generations -------------------------------------------------------------------------------------------------------


def test_captures_of_an_older_generation_are_refused(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0])
    trainer = PlainTrainer(node.vault_socket, 0)
    assert trainer.capture(1)
    node.enter(1, 0, [0])
    straggler = PlainTrainer(node.vault_socket, 0, generation=0)
    straggler.client.request_arena(4096)
    with pytest.raises(StaleGeneration):
        straggler.client.grant(5.0)
    current = PlainTrainer(node.vault_socket, 0, generation=1)
    assert current.capture(1)
    late = PlainTrainer(node.vault_socket, 0, generation=0)
    with pytest.raises(GenerationOver):
        late.capture(2)
    with pytest.raises(GenerationOver):
        trainer.capture(2)
    assert current.capture(2), "a trainer that was replaced does not take the place of its successor"


def test_a_vault_that_was_started_anew_takes_captures_once_it_is_told_the_generation(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(3, 0, [0])
    trainer = PlainTrainer(node.vault_socket, 0, generation=3)
    assert trainer.capture(1)
    node.vault.kill()
    node.vault.wait()
    with pytest.raises(VaultUnavailable):
        trainer.capture(2)
    with pytest.raises(VaultUnavailable):
        VaultClient(node.vault_socket, 0, 3, connect_s=0)
    node.vault = node._start_vault()
    node.adopt()
    early = VaultClient(node.vault_socket, 0, 3, connect_s=0)
    early.request_arena(4096)
    with pytest.raises(StaleGeneration):
        early.grant(30.0)
    node.enter(3, 0, [0])
    node.tell({"kind": "pin", "step": 3})
    assert PlainTrainer(node.vault_socket, 0, generation=3).capture(3)
    assert node.wait_fact("checkpoint_captured", step=3)["generation"] == 3


def test_steps_above_the_restored_one_never_happened(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0, 1])
    trainers = captured_pair(node, 4)
    node.tell({"kind": "retain", "steps": [4]})
    node.tell({"kind": "pin", "step": 6})
    for trainer in trainers:
        assert trainer.capture(6)
    node.wait_fact("checkpoint_captured", step=6)
    node.enter(1, 0, [0, 1], step=4)
    assert node.wait_fact("checkpoint_dropped", step=6)["why"] == "stale_generation"
    node.vault_says.wait(kind="restorable", step=4, generation=1)


# Restoring ---------------------------------------------------------------------------------------------------------


def test_state_survives_the_trainer_and_is_handed_out_when_all_are_ready(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0, 1])
    for trainer in captured_pair(node, 7):
        trainer.close()
    node.enter(1, 0, [0, 1], step=7)
    assert node.vault_says.wait(kind="restorable", generation=1)[0]["tier"] == "memory"
    trainer = PlainTrainer(node.vault_socket, 1, generation=1)
    with pytest.raises(ShardMismatch, match="timeout"):
        trainer.read(7, wait_s=0.5)
    trainer.close()
    trainer = PlainTrainer(node.vault_socket, 1, generation=1)
    node.tell({"kind": "load", "generation": 1})
    restored, body = trainer.read(7)
    assert body == content(1, 7, 64 * 1024, 32 * 1024)
    assert (restored.step, restored.slot, restored.tier) == (7, 0, "memory")


def test_one_flipped_byte_in_own_memory_is_noticed(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0, 1])
    captured_pair(node, 7)
    damage_one_byte(node, 1, 7)
    node.enter(1, 0, [0, 1], step=7)
    failure = node.vault_says.wait(kind="restore_failed")[0]
    assert (failure["why"], failure["step"], failure["slot"], failure["tier"]) == ("digest_mismatch", 7, 0, "memory")
    assert node.wait_fact("checkpoint_dropped", step=7)["why"] == "digest_mismatch"


def test_state_that_is_not_finite_is_not_handed_out(make_node: MakeNode) -> None:
    """Where no check certifies a step, the restore itself refuses it, from own memory and from another's."""
    node, other = make_node(), make_node()
    node.enter(0, 0, [0])
    trainer = PlainTrainer(node.vault_socket, 0)
    node.tell({"kind": "pin", "step": 7})
    layout = Layout([Wanted("weight", "float32", (2,), 8, "own", finite=True)])
    meta = layout.meta(0, 2)
    trainer.client.request_arena(meta.total_bytes)
    granted = trainer.client.grant(5.0)
    assert granted is not None
    body = struct.pack("<2f", 1.0, float("nan")).ljust(64, b"\0") + layout.entries_json + b"{}"
    granted.memory[: len(body)] = body
    trainer.client.captured(7, meta, None)
    told = node.vault_says.wait(kind="digests", step=7)[0]
    assert told["ranks"]["0"]["finite"] is False
    node.wait_fact("checkpoint_captured", step=7)
    other.enter(1, 0, [0], step=7, holder=node, tier="replica")
    assert other.vault_says.wait(kind="restore_failed")[0]["why"] == "nonfinite"
    node.enter(1, 0, [0], step=7)
    assert node.vault_says.wait(kind="restore_failed")[0]["why"] == "nonfinite"


def test_a_step_that_is_not_here_is_missing(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(1, 0, [0, 1], step=9)
    assert node.vault_says.wait(kind="restore_failed")[0]["why"] == "missing"


def test_a_copy_of_other_ranks_is_refused(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0, 1])
    captured_pair(node, 7)
    node.enter(1, 0, [0, 1, 2, 3], step=7)
    assert node.vault_says.wait(kind="restore_failed")[0]["why"] == "topology_mismatch"


# Replicas ----------------------------------------------------------------------------------------------------------


def test_a_pinned_step_reaches_the_other_node_and_comes_back_from_there(make_node: MakeNode) -> None:
    owner, holder, standby = make_node(), make_node(), make_node()
    holder.enter(0, 1, [2, 3], replicate_to=[owner])
    owner.enter(0, 0, [0, 1], replicate_to=[holder])
    captured_pair(owner, 7)
    copied = holder.wait_fact("checkpoint_replicated", step=7, slot=0)
    assert copied["digest"] == owner.facts("checkpoint_captured")[0]["digest"]
    owner.vault.kill()
    standby.enter(1, 0, [0, 1], step=7, holder=holder, tier="replica")
    standby.vault_says.wait(kind="restorable", step=7, tier="replica")
    standby.tell({"kind": "load", "generation": 1})
    for rank in (0, 1):
        _, body = PlainTrainer(standby.vault_socket, rank, generation=1).read(7)
        assert body == content(rank, 7, 64 * 1024, 32 * 1024)


def test_a_replica_damaged_in_its_holders_memory_is_not_restored(make_node: MakeNode) -> None:
    owner, holder, standby = make_node(), make_node(), make_node()
    holder.enter(0, 1, [2, 3])
    owner.enter(0, 0, [0, 1], replicate_to=[holder])
    captured_pair(owner, 7)
    holder.wait_fact("checkpoint_replicated", step=7)
    damage_one_byte(holder, 0, 7)
    standby.enter(1, 0, [0, 1], step=7, holder=holder, tier="replica")
    failure = standby.vault_says.wait(kind="restore_failed")[0]
    assert (failure["why"], failure["holder"], failure["tier"]) == ("digest_mismatch", "node-1", "replica")


def test_a_replica_the_holder_never_had_is_missing(make_node: MakeNode) -> None:
    holder, standby = make_node(), make_node()
    standby.enter(1, 0, [0, 1], step=7, holder=holder, tier="replica")
    assert standby.vault_says.wait(kind="restore_failed")[0]["why"] == "missing"


def test_a_holder_that_is_gone_is_a_timeout(make_node: MakeNode) -> None:
    holder, standby = make_node(), make_node(transfer_attempts=2)
    holder.vault.kill()
    holder.vault.wait()
    standby.enter(1, 0, [0, 1], step=7, holder=holder, tier="replica")
    assert standby.vault_says.wait(kind="restore_failed")[0]["why"] == "timeout"


def test_a_standby_that_holds_the_slots_replica_restores_it_without_asking(make_node: MakeNode) -> None:
    owner, standby = make_node(), make_node()
    standby.enter(0, None, [])
    owner.enter(0, 0, [0, 1], replicate_to=[standby])
    captured_pair(owner, 7)
    standby.wait_fact("checkpoint_replicated", step=7)
    owner.vault.kill()
    standby.enter(1, 0, [0, 1], step=7)
    standby.vault_says.wait(kind="restorable", step=7)


def test_a_restored_step_is_replicated_again_to_a_node_that_lacks_it(make_node: MakeNode) -> None:
    owner, newcomer = make_node(), make_node()
    owner.enter(0, 0, [0, 1])
    captured_pair(owner, 7)
    newcomer.enter(1, None, [], step=7)
    owner.enter(1, 0, [0, 1], step=7, replicate_to=[newcomer])
    newcomer.wait_fact("checkpoint_replicated", step=7, slot=0, generation=0)


def test_a_kept_step_is_replicated_to_a_node_that_comes_later(make_node: MakeNode) -> None:
    owner, first, second = make_node(), make_node(), make_node()
    first.enter(0, None, [])
    second.enter(0, None, [])
    owner.enter(0, 0, [0, 1], replicate_to=[first])
    captured_pair(owner, 7)
    first.wait_fact("checkpoint_replicated", step=7)
    owner.tell({"kind": "retain", "steps": [7]})
    peers = [{"node": node.name, "host": "127.0.0.1", "port": node.port} for node in (first, second)]
    owner.tell({"kind": "replicate_to", "replicate_to": peers})
    second.wait_fact("checkpoint_replicated", step=7, slot=0)


def test_replication_that_cannot_work_is_said_and_training_goes_on(make_node: MakeNode) -> None:
    owner, gone = make_node(transfer_attempts=2), make_node()
    gone.vault.kill()
    gone.vault.wait()
    owner.enter(0, 0, [0, 1], replicate_to=[gone])
    trainers = captured_pair(owner, 7)
    owner.vault_says.wait(kind="degraded")
    assert trainers[0].capture(8)


def test_a_holder_keeps_a_bounded_number_of_steps(make_node: MakeNode) -> None:
    owner, holder = make_node(), make_node(replica_copies=2)
    holder.enter(0, 1, [2, 3])
    owner.enter(0, 0, [0], replicate_to=[holder])
    trainer = PlainTrainer(owner.vault_socket, 0)
    for step in range(1, 9):
        owner.tell({"kind": "pin", "step": step})
        assert trainer.capture(step)
        holder.wait_fact("checkpoint_replicated", step=step)
        for node in (owner, holder):
            node.tell({"kind": "retain", "steps": [step]})
    wait_until(lambda: len(vault_memory(holder.vault.pid)) <= 2, "older replicas are given back")
    assert holder.wait_fact("checkpoint_dropped", step=1)["tier"] == "replica"


def test_a_vault_with_another_secret_is_not_believed(tmp_path: Path, make_node: MakeNode, monkeypatch: Any) -> None:
    owner = make_node(transfer_attempts=2)
    monkeypatch.setattr("node_double.SECRET", "66" * 32)
    stranger = make_node()
    stranger.enter(0, 1, [2, 3])
    owner.enter(0, 0, [0, 1], replicate_to=[stranger])
    captured_pair(owner, 7)
    owner.vault_says.wait(kind="degraded")
    assert stranger.facts("checkpoint_replicated") == []


# Life and death ----------------------------------------------------------------------------------------------------


def test_an_agent_that_comes_back_finds_the_state(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0, 1])
    captured_pair(node, 7)
    assert node.control is not None
    node.control.close()
    node.adopt()
    node.enter(1, 0, [0, 1], step=7)
    node.vault_says.wait(kind="restorable", step=7, generation=1)


def test_an_orphaned_vault_ends(make_node: MakeNode) -> None:
    node = make_node(orphan_s=1)
    assert node.control is not None
    node.control.shutdown(socket.SHUT_RDWR)  # a close alone waits for the thread that reads it
    assert node.vault.wait(10) == 0


def test_a_message_that_makes_no_sense_costs_nothing(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0, 1])
    captured_pair(node, 7)
    stranger = local_socket.connect(node.vault_socket)
    local_socket.send(stranger, {"kind": "hello", "role": "trainer", "rank": 0, "generation": 0})
    local_socket.send(stranger, {"kind": "captured", "meta": None})
    local_socket.send(stranger, {"kind": "arena", "bytes": "many"})
    stranger.send(b"no json")
    node.tell({"kind": "pin"})
    node.enter(1, 0, [0, 1], step=7)
    node.vault_says.wait(kind="restorable", step=7)


def test_too_little_memory_is_said_and_training_goes_on(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0])
    trainer = PlainTrainer(node.vault_socket, 0)
    trainer.client.request_arena(1 << 60)
    assert trainer.client.grant(5.0) is None
    said = node.vault_says.wait(kind="degraded")[0]
    assert (said["what"], said["why"].partition(":")[0]) == ("captures", "no memory")


def test_close_ends_the_vault_and_leaves_nothing(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0, 1])
    captured_pair(node, 7)
    before = set(os.listdir("/dev/shm"))
    node.tell({"kind": "close"})
    assert node.vault.wait(10) == 0
    assert not [name for name in set(os.listdir("/dev/shm")) | before if "lmr" in name]
