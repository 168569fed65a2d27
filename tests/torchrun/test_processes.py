"""The processes of a node: who dies with whom, what is kept and what is left behind."""

import os
import signal
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torchrun

WAITING = Path(__file__).parent / "scripts" / "waiting_worker.py"


def abstract_sockets():
    """Abstract socket names of ours on this machine."""
    names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    return {name for name in names if name.startswith("@lmr-")}


def sockets_of(loop):
    """Those of a job's nodes: each is named after its node's scope, and an agent's ends with its pid."""
    pids = {f"-{agent.process.pid}" for agent in loop.agents.values()}
    names = abstract_sockets()
    scopes = {name.split("-")[2] for name in names if name.startswith("@lmr-agent-") and name.endswith(tuple(pids))}
    return {name for name in names if any(scope in name for scope in scopes)}


def test_only_the_agent_is_killed(waiting):
    """Its orphans die before the standby starts theirs: never two writers of one rank."""
    loop = waiting(nodes="2:3", nproc=2, policy="schema_version = 1\n[checkpoint]\norphan_s = 1\n")
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    os.kill(loop.agents["node-2"].process.pid, signal.SIGKILL)
    loop.wait_running(1)
    assert loop.active() == ["node-1", "node-3"]
    loop.wait_for(lambda: not loop.processes("node-2"), "everything of node-2 to end")
    loop.finish_well("node-1", "node-3")
    loop.assert_one_writer()


@pytest.mark.parametrize("options", [("--max-restarts=4",), ()], ids=["with budget", "without budget"])
def test_the_process_torchrun_knows_is_killed(waiting, options):
    """A supervisor takes its trainer along; torchrun sees it die. With budget the node goes on, else it is replaced."""
    loop = waiting(nodes="2:3", nproc=1, options=options)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    os.kill(loop.workers("node-2")[1], signal.SIGKILL)
    loop.wait_plan(2)
    loop.wait_for(lambda: len(loop.starts(loop.plans()[-1]["to_generation"])) == 2, "both ranks to run again")
    if options:
        assert loop.told()[1:] == [("restart", "process_crash")]
        loop.finish_well("node-1", "node-2", "node-3")
    else:
        loop.wait_for(lambda: loop.active() == ["node-1", "node-3"] or bool(loop.trainers("node-2")), "a new placement")
        loop.finish()
        assert loop.wait_exit("node-1") == 0, loop.standing()
        assert loop.wait_exit("node-3") == 0, loop.standing()
    loop.assert_one_writer()


def test_a_parked_standby_does_not_mind_user_signals(waiting):
    """SIGUSR1 and SIGUSR2 mean something to training scripts; a standby that has none yet stays parked."""
    loop = waiting(nodes="1:2", nproc=1)
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.kill(loop.agents["node-2"].process.pid, number)
    loop.request("replace", "node-1")
    loop.wait_running(1)
    assert loop.active() == ["node-2"]
    loop.finish_well("node-1", "node-2")


def test_the_logs_of_the_failed_generation_are_kept(waiting, tmp_path):
    """torchrun removes them at a membership restart; what a rank last said must survive it."""
    loop = waiting(nodes="1:1", nproc=2, options=(f"--log-dir={tmp_path / 'logs'}", "--redirects=3"))
    loop.start_all("node-1")
    loop.wait_running(0)
    os.kill(loop.trainers("node-1")[1], signal.SIGKILL)
    loop.wait_running(1)
    loop.finish_well("node-1")
    kept = {path.relative_to(tmp_path / "logs").parts[1:]: path for path in (tmp_path / "logs").rglob("stdout.log")}
    assert sorted(kept) == [
        (folder, rank, "stdout.log") for folder in ("attempt_0", "generation_0") for rank in ("0", "1")
    ]
    assert kept["generation_0", "1", "stdout.log"].read_text() == "rank 1 works in generation 0\n"


def test_nothing_is_left_behind(job, tmp_path, monkeypatch):
    """After a run with a crash and a lost machine: no process, no abstract socket, no file outside its folder."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    shared = set(Path("/dev/shm").iterdir())
    loop = job("--steps", "60", nodes="2:3", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.train_until(10)
    mine = sockets_of(loop)
    assert len({name.split("-")[2] for name in mine}) == 3
    loop.kill_machine("node-2")
    assert [loop.wait_exit(node, 90) for node in ("node-1", "node-3")] == [0, 0], loop.standing()
    for node in ("node-1", "node-2", "node-3"):
        loop.wait_for(lambda node=node: not loop.processes(node), f"everything of {node} to end")
    assert not abstract_sockets() & mine
    assert not {path for path in set(Path("/dev/shm").iterdir()) - shared if "lmr" in path.name}
    # what torch itself leaves, with any backend: torchrun's folder of logs, and a cache
    ours = [p.name for p in temporary.iterdir() if not p.name.startswith(("torchelastic_", "torchinductor_"))]
    assert ours == []
    assert {path.name for path in loop.folder.iterdir() if path.suffix not in (".out", ".jsonl")} <= {
        "context.node-1.json",
        "context.node-2.json",
        "context.node-3.json",
        "decider.json",
        "events.db",
        "policy.toml",
    }


@pytest.fixture
def slow_python(tmp_path):
    """An environment in which a file server keeps interpreters of workers waiting for four seconds."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(
        "import os, time\n"
        "if 'LMR_AGENT_SOCKET' in os.environ and 'LMR_SUPERVISED_BY' not in os.environ:\n"
        "    time.sleep(4)\n"
    )
    return {"PYTHONPATH": str(tmp_path / "slow")}


def test_workers_that_are_slow_to_report_themselves_are_protected(waiting, slow_python):
    """A slow interpreter is no interpreter that ignores us; its start is said once."""
    loop = waiting(nodes="1:1", nproc=2, environ=slow_python)
    loop.start_all("node-1")
    loop.wait_running(0)
    loop.finish_well("node-1")
    assert "unprotected" not in loop.agents["node-1"].text()
    assert len(loop.events("generation_started")) == 1


def test_workers_too_slow_to_be_waited_for_are_no_loss_and_are_protected_later(waiting, slow_python):
    """Half of `start_s` is over: they are said to run, and to be unprotected until they report themselves after all."""
    policy = "schema_version = 1\n[recovery]\nstart_s = 6\n"
    loop = waiting(nodes="1:1", nproc=2, environ=slow_python, policy=policy)
    loop.start_all("node-1")
    loop.wait_for(lambda: "protection_back" in loop.agents["node-1"].text(), "the workers to report themselves", 60)
    assert "the workers have not reported themselves for 3 s" in loop.agents["node-1"].text()
    loop.finish_well("node-1")
    assert loop.told() == [("start", "initial_placement")]


@pytest.mark.parametrize(
    "how", [["--no-python", sys.executable, "-E"], ["--no-python", sys.executable, "-I"]], ids=["-E", "-I"]
)
def test_a_worker_that_cannot_be_supervised_runs_unprotected(waiting, how):
    """Python that ignores PYTHONPATH: the agent says so in a line, training runs, and its end is the run's."""
    loop = waiting(nodes="1:1", nproc=1, options=(), command=[])
    loop.command = [*how, str(WAITING), "--out", str(loop.log)]
    loop.start_all("node-1")
    loop.wait_running(0)
    assert "unprotected" in loop.agents["node-1"].text()
    loop.finish_well("node-1")
