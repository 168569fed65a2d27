"""The command as the README gives it, and with everything left out that may be."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torchrun

README = Path(__file__).parents[2] / "README.md"


def command_of_the_readme(port):
    """The torchrun command of the README, with CPU-sized numbers: two ranks a node, and a port that is free."""
    (found,) = re.findall(r"```sh\n(torchrun .*?)```", README.read_text(), re.DOTALL)
    for asked, ours in (("--nproc-per-node=8", "--nproc-per-node=2"), (":29400", f":{port}")):
        assert found.count(asked) == 1
        found = found.replace(asked, ours)
    return found


def as_written(job, steps):
    """A job whose agents are started by a shell that runs the command as written."""
    loop = job(nodes="1:2")
    port = loop.endpoint.rsplit(":", 1)[1]
    loop.endpoint = f"localhost:{port}"
    loop.environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parent / "scripts"),
        "RDZV_HOST": "localhost",
        "RUN_ID": loop.run_id,
        "RESTART_CONTEXT": str(loop.folder / "context.json"),
        "WORKER_CONFIG": str(loop.folder / "policy.toml"),
        "TRAINING_ARGUMENTS": f"--steps {steps} --step-s 0.03 --out {loop.log}",
    }
    loop.arguments = lambda: ["bash", "-c", f"exec {command_of_the_readme(port)}"]
    return loop


def test_the_command_as_written(job):
    """One node trains, one is parked; a killed worker comes back; both agents exit with 0 and print no traceback."""
    loop = as_written(job, 60)
    loop.start_all("node-1", "node-2")
    loop.train_until(15)
    assert loop.active() == ["node-1"]
    os.kill(loop.trainers("node-1")[1], signal.SIGKILL)
    assert [loop.wait_exit(node, 90) for node in ("node-1", "node-2")] == [0, 0], loop.standing()
    assert [p["action"] for p in loop.plans()] == ["start", "restart"]
    assert loop.plans()[1]["checkpoint"]["step"] > 0
    assert "Traceback" not in loop.agents["node-2"].text()
    assert loop.agents["node-1"].text().count("Traceback") <= 1  # rank 0's own: its peer vanished
    assert all(loop.entries(rank)[-1]["finished"] == 60 for rank in (0, 1))


def test_a_lost_node_goes_on_from_the_replica_in_the_standbys_memory(job):
    """The only active node is gone with its memory; the standby had a copy of it, and takes its ranks."""
    loop = as_written(job, 150)
    loop.start_all("node-1", "node-2")
    loop.train_until(15)
    loop.request("replace", "node-1")  # so that the node to be lost does not host the rendezvous
    loop.wait_resumed(1)
    assert loop.active() == ["node-2"]
    loop.request("uncordon", "node-1")
    loop.train_until(loop.step() + 20)
    loop.kill_machine("node-2")
    assert loop.wait_exit("node-1", 90) == 0, loop.standing()
    _, moved, lost = loop.plans()
    assert [p["reason"] for p in (moved, lost)] == ["operator", "node_lost"]
    assert moved["checkpoint"]["sources"] == [{"slot": 0, "holder": "node-2", "tier": "replica"}]
    assert lost["checkpoint"]["sources"] == [{"slot": 0, "holder": "node-1", "tier": "replica"}]
    assert lost["checkpoint"]["step"] > moved["checkpoint"]["step"] > 0
    assert [e["finished"] for rank in (0, 1) for e in loop.entries(rank) if "finished" in e] == [150, 150]


@pytest.mark.parametrize(
    "left_out",
    [
        {"conf": {"store_type": "file"}},
        {"context": False, "policy": ""},
        {"options": ()},
        {"conf": {"store_type": "file"}, "context": False, "policy": "", "options": ()},
    ],
    ids=["store_type=file", "no lm_resiliency key", "no --max-restarts", "all of it"],
)
def test_what_may_be_left_out(waiting, tmp_path, left_out):
    """A standby, a killed worker and a clean end do not depend on any optional setting."""
    if "conf" in left_out:
        left_out = {**left_out, "endpoint": str(tmp_path / "meet")}
    loop = waiting(nodes="1:2", nproc=1, environ={"XDG_STATE_HOME": str(tmp_path / "state")}, **left_out)
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    os.kill(loop.trainers("node-1")[0], signal.SIGKILL)
    loop.wait_running(1)
    assert loop.told()[1:] == [("restart", "process_crash")]
    loop.finish_well("node-1", "node-2")
    assert not list(tmp_path.glob("meet*"))


def test_another_backend_is_not_disturbed(job):
    """Being installed changes nothing for a run that did not ask for us."""
    plain = job("--steps", "3", nodes="1", nproc=1, backend="c10d", policy="")
    plain.start("alone")
    assert plain.wait_exit("alone") == 0, plain.standing()
    assert "lmr" not in plain.agents["alone"].text()
    assert subprocess.run(["pgrep", "-f", f"vault.*{plain.run_id}"], check=False, capture_output=True).stdout == b""
