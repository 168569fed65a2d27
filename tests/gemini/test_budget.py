"""What a vault may take is computed when the state's size is known, said, and kept."""

from __future__ import annotations

from plain_trainer import PlainTrainer, taken_bytes
from vault_story import MakeNode, captured_pair, wait_until

MIB = 1 << 20


def test_what_is_taken_stays_below_the_bound_whatever_comes(make_node: MakeNode) -> None:
    holder = make_node()
    owners = [make_node(), make_node(), make_node()]
    holder.enter(0, 3, [6, 7], replicate_to=owners[:1])
    for slot, owner in enumerate(owners):
        owner.enter(0, slot, [2 * slot, 2 * slot + 1], replicate_to=[holder])
    trainers = {
        rank: PlainTrainer(node.vault_socket, rank, nbytes=2 * MIB)
        for node, ranks in [(holder, (6, 7)), *((owner, (2 * i, 2 * i + 1)) for i, owner in enumerate(owners))]
        for rank in ranks
    }
    for step in range(1, 13):
        for node in (holder, *owners):
            node.tell({"kind": "pin", "step": step})
        for trainer in trainers.values():
            trainer.capture(step)
        for slot, owner in enumerate(owners):
            owner.wait_fact("checkpoint_captured", step=step, slot=slot)
        for node in (holder, *owners):
            node.tell({"kind": "retain", "steps": [step]})
    bound = holder.vault_says.wait(kind="memory")[0]["bound_bytes"]
    # One slot of replicas is its share; three come here, and what does not fit is refused.
    wait_until(lambda: holder.facts("checkpoint_replicated"), "replicas come")
    assert 8 * 2 * MIB <= taken_bytes(holder.vault.pid) <= bound


def test_captures_that_cannot_fit_are_refused_at_the_start_with_the_cure(make_node: MakeNode) -> None:
    node = make_node(memory_max_bytes=8 * MIB)
    node.enter(0, 0, [0, 1])
    trainer = PlainTrainer(node.vault_socket, 0, nbytes=4 * MIB)
    assert not trainer.capture(1)
    said = node.vault_says.wait(kind="degraded")[0]
    assert said["what"] == "captures"
    assert said["why"].endswith("0.01 GiB can be had: lower checkpoint.buffers")
    assert taken_bytes(node.vault.pid) == 0


def test_when_only_the_node_itself_fits_it_is_protected_and_the_others_are_told(make_node: MakeNode) -> None:
    holder, owner = make_node(memory_max_bytes=2 * MIB), make_node(transfer_attempts=1)
    holder.enter(0, 1, [0, 1])
    captured_pair(holder, 3)
    assert holder.vault_says.wait(kind="degraded")[0]["what"] == "copies of other nodes"
    owner.enter(0, 0, [0, 1], replicate_to=[holder])
    captured_pair(owner, 3)
    said = owner.vault_says.wait(kind="degraded")[0]
    assert said["what"] == "replica of step 3 on node-0"
    assert said["why"].startswith("no memory")


def test_state_that_fits_later_is_protected_again(make_node: MakeNode) -> None:
    node = make_node(memory_max_bytes=4 * MIB)
    node.enter(0, 0, [0])
    assert not PlainTrainer(node.vault_socket, 0, nbytes=4 * MIB).capture(1)
    node.enter(1, 0, [0])
    assert PlainTrainer(node.vault_socket, 0, generation=1, nbytes=64 * 1024).capture(1)
