"""What travels between vaults: only what the other side lacks, and after a cut only the rest. Counted on the wire."""

from __future__ import annotations

import pytest
from node_double import NodeDouble
from plain_trainer import PlainTrainer, content, taken_bytes
from vault_story import MakeNode, wait_until
from wire_tap import WireTap

MIB = 1 << 20
SIZE = 16 * MIB


def capture(node: NodeDouble, trainers: list[PlainTrainer], step: int) -> None:
    node.tell({"kind": "pin", "step": step})
    for trainer in trainers:
        assert trainer.capture(step)
    node.wait_fact("checkpoint_captured", step=step)


def restored_from(holder: NodeDouble, taker: NodeDouble, rank: int, step: int) -> bytes:
    taker.enter(1, 0, [0], step=step, holder=holder, tier="replica")
    taker.vault_says.wait(kind="restorable", step=step)
    taker.tell({"kind": "load", "generation": 1})
    return PlainTrainer(taker.vault_socket, rank, generation=1).read(step)[1]


def test_a_cut_transfer_goes_on_where_it_was(make_node: MakeNode) -> None:
    owner, holder, taker = [make_node(chunk_bytes=MIB) for _ in range(3)]
    tap = WireTap(holder.name, holder.port, cut_after_bytes=12 * MIB)
    holder.enter(0, None, [])
    owner.enter(0, 0, [0], replicate_to=[tap])
    capture(owner, [PlainTrainer(owner.vault_socket, 0, nbytes=SIZE)], 7)
    holder.wait_fact("checkpoint_replicated", step=7, slot=0)
    first, second = tap.passed_bytes
    assert first > 8 * MIB
    assert second < SIZE - first + 2 * MIB, "no more than what was missing, and the frame that was cut"
    assert restored_from(holder, taker, 0, 7) == content(0, 7, SIZE, SIZE // 2)


def test_a_cut_restore_goes_on_where_it_was(make_node: MakeNode) -> None:
    owner, holder, taker = [make_node(chunk_bytes=MIB) for _ in range(3)]
    holder.enter(0, None, [])
    owner.enter(0, 0, [0], replicate_to=[holder])
    capture(owner, [PlainTrainer(owner.vault_socket, 0, nbytes=SIZE)], 7)
    holder.wait_fact("checkpoint_replicated", step=7, slot=0)
    tap = WireTap(holder.name, holder.port, cut_after_bytes=12 * MIB)
    assert restored_from(tap, taker, 0, 7) == content(0, 7, SIZE, SIZE // 2)
    first, second = tap.passed_bytes
    assert second < SIZE - first + 2 * MIB


def test_what_data_parallel_peers_hold_alike_is_not_sent(make_node: MakeNode) -> None:
    """The first half of every rank's state is equal on all ranks; the holder has it as its own."""
    owner, holder, taker = make_node(), make_node(), make_node()
    tap = WireTap(holder.name, holder.port)
    holder.enter(0, 1, [1])
    owner.enter(0, 0, [0], replicate_to=[tap])
    mine = PlainTrainer(owner.vault_socket, 0, nbytes=SIZE)
    theirs = PlainTrainer(holder.vault_socket, 1, nbytes=SIZE)
    capture(holder, [theirs], 7)
    capture(owner, [mine], 7)
    holder.wait_fact("checkpoint_replicated", step=7, slot=0)
    assert SIZE // 2 <= sum(tap.passed_bytes) < SIZE // 2 + MIB
    assert restored_from(holder, taker, 0, 7) == content(0, 7, SIZE, SIZE // 2)


def test_bytes_that_are_changed_on_their_way_are_not_taken_in(make_node: MakeNode) -> None:
    """State travels without a seal of its own: its digests came in one. Only the chunk that was hit is sent again."""
    owner, holder, taker = make_node(), make_node(), make_node()
    tap = WireTap(holder.name, holder.port, flip_at=9 * MIB)
    holder.enter(0, None, [])
    owner.enter(0, 0, [0], replicate_to=[tap])
    capture(owner, [PlainTrainer(owner.vault_socket, 0, nbytes=SIZE)], 7)
    holder.wait_fact("checkpoint_replicated", step=7, slot=0)
    assert SIZE + MIB <= sum(tap.passed_bytes) < SIZE + 2 * MIB
    assert restored_from(holder, taker, 0, 7) == content(0, 7, SIZE, SIZE // 2)


@pytest.mark.parametrize("frozen", [0, SIZE // 4])
def test_what_did_not_change_since_the_last_step_is_not_sent_again(make_node: MakeNode, frozen: int) -> None:
    owner, holder, taker = make_node(), make_node(), make_node()
    tap = WireTap(holder.name, holder.port)
    holder.enter(0, None, [])
    owner.enter(0, 0, [0], replicate_to=[tap])
    trainer = PlainTrainer(owner.vault_socket, 0, nbytes=SIZE, frozen=frozen)
    for step in (7, 8):
        before = sum(tap.passed_bytes)
        capture(owner, [trainer], step)
        holder.wait_fact("checkpoint_replicated", step=step, slot=0)
    assert SIZE - frozen <= sum(tap.passed_bytes) - before < SIZE - frozen + MIB
    assert restored_from(holder, taker, 0, 8) == content(0, 8, SIZE, SIZE // 2, frozen)


def test_the_same_copy_sent_twice_costs_a_header(make_node: MakeNode) -> None:
    owner, holder = make_node(), make_node()
    tap = WireTap(holder.name, holder.port)
    holder.enter(0, None, [])
    owner.enter(0, 0, [0], replicate_to=[tap])
    capture(owner, [PlainTrainer(owner.vault_socket, 0, nbytes=SIZE)], 7)
    holder.wait_fact("checkpoint_replicated", step=7, slot=0)
    before = sum(tap.passed_bytes)
    owner.tell({"kind": "save"})
    owner.vault_says.wait(kind="saved")
    wait_until(lambda: sum(tap.passed_bytes) > before, "it was offered again")
    assert sum(tap.passed_bytes) - before < 16 * 1024


def test_what_data_parallel_peers_hold_alike_is_stored_once(make_node: MakeNode) -> None:
    """And the holder's own captures go on: what is shared is given up with the step."""
    owner, holder, taker = make_node(), make_node(buffers=3), make_node()
    holder.enter(0, 1, [1])
    owner.enter(0, 0, [0], replicate_to=[holder])
    mine = PlainTrainer(owner.vault_socket, 0, nbytes=SIZE)
    theirs = PlainTrainer(holder.vault_socket, 1, nbytes=SIZE)
    for step in range(1, 9):
        capture(holder, [theirs], step)
        alone = taken_bytes(holder.vault.pid) if step == 1 else 0
        capture(owner, [mine], step)
        holder.wait_fact("checkpoint_replicated", step=step, slot=0)
        if step == 1:
            assert SIZE // 2 <= taken_bytes(holder.vault.pid) - alone < SIZE // 2 + 3 * MIB
        for node in (owner, holder):
            node.tell({"kind": "retain", "steps": [step]})
    assert restored_from(holder, taker, 0, 8) == content(0, 8, SIZE, SIZE // 2)


def test_a_standby_stores_what_several_slots_hold_alike_once_and_can_restore_each(make_node: MakeNode) -> None:
    """Promoted, it hands its trainer memory that has all the bytes, and the other slot's copy stays whole."""
    owners, standby = [make_node(), make_node()], make_node()
    standby.enter(0, None, [])
    for slot, owner in enumerate(owners):
        owner.enter(0, slot, [slot], replicate_to=[standby])
        capture(owner, [PlainTrainer(owner.vault_socket, slot, nbytes=SIZE)], 7)
        standby.wait_fact("checkpoint_replicated", step=7, slot=slot)
    assert taken_bytes(standby.vault.pid) < 2 * SIZE - SIZE // 2 + 3 * MIB
    standby.enter(1, 1, [1], step=7, tier="replica")
    standby.vault_says.wait(kind="restorable", step=7)
    standby.tell({"kind": "load", "generation": 1})
    assert PlainTrainer(standby.vault_socket, 1, generation=1).read(7)[1] == content(1, 7, SIZE, SIZE // 2)
    taker = make_node()
    assert restored_from(standby, taker, 0, 7) == content(0, 7, SIZE, SIZE // 2)
