"""What a node saves before it ends, and what it says of it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from plain_trainer import PlainTrainer
from vault_story import MakeNode, captured_pair, wait_until


def on_disk(tmp_path: Path, node: str) -> list[str]:
    return sorted(path.name[:13] for path in (tmp_path / "disk" / "test-run" / node).glob("*.json"))


def test_every_complete_capture_goes_to_disk_and_to_the_peer(make_node: MakeNode, tmp_path: Path) -> None:
    """Step 5 was kept by all; 6 and 7 came since and nobody had asked for them; 8 is not complete."""
    owner, peer = make_node(disk_folder=str(tmp_path / "disk"), disk_keep=8), make_node()
    peer.enter(0, None, [])
    owner.enter(0, 0, [0, 1], replicate_to=[peer])
    first, second = captured_pair(owner, 5)
    owner.tell({"kind": "retain", "steps": [5]})
    for step in (6, 7):
        assert first.capture(step)
        assert second.capture(step)
    assert first.capture(8)
    owner.tell({"kind": "save"})
    saved = owner.vault_says.wait(kind="saved")[0]
    assert saved == {"kind": "saved", "disk": [5, 6, 7], "memory": [5, 6, 7]}
    assert on_disk(tmp_path, "node-0") == ["step-00000005", "step-00000006", "step-00000007"]
    for step in (5, 6, 7):
        assert owner.facts("checkpoint_captured", step=step)
        assert owner.facts("checkpoint_flushed", step=step)
        peer.wait_fact("checkpoint_replicated", step=step)


def test_a_second_wish_is_answered_with_the_first(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node(disk_folder=str(tmp_path / "disk"))
    node.enter(0, 0, [0, 1])
    captured_pair(node, 5)
    node.tell({"kind": "save"})
    node.tell({"kind": "save"})
    assert [m["disk"] for m in node.vault_says.wait(kind="saved", count=2)] == [[5], [5]]


def test_without_disk_and_peers_there_is_nothing_to_wait_for(make_node: MakeNode) -> None:
    node = make_node()
    node.enter(0, 0, [0])
    PlainTrainer(node.vault_socket, 0).capture(1)
    node.tell({"kind": "save"})
    assert node.vault_says.wait(kind="saved")[0] == {"kind": "saved", "disk": [], "memory": [1]}


def test_a_vault_that_is_told_to_end_saves_and_waits_for_its_agent(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node(disk_folder=str(tmp_path / "disk"))
    node.enter(0, 0, [0, 1])
    captured_pair(node, 5)
    os.kill(node.vault.pid, signal.SIGTERM)
    wait_until(lambda: on_disk(tmp_path, "node-0"), "the step goes to disk")
    node.tell({"kind": "save"})
    node.vault_says.wait(kind="saved")
    assert node.vault.poll() is None
    assert node.control is not None
    node.control.shutdown(socket.SHUT_RDWR)
    assert node.vault.wait(10) == 0


def test_what_a_scheduler_sends_to_every_process_of_a_job_costs_no_memory(make_node: MakeNode) -> None:
    """As `scancel --signal=USR1` does: training scripts have a use for it, a vault has not and must not end of it."""
    node = make_node()
    node.enter(0, 0, [0])
    PlainTrainer(node.vault_socket, 0).capture(1)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
        os.kill(node.vault.pid, number)
    node.tell({"kind": "save"})
    assert node.vault_says.wait(kind="saved")[0] == {"kind": "saved", "disk": [], "memory": [1]}
    assert node.vault.poll() is None
