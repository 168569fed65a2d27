"""What people reported of systems of this kind, each with real agents and real signals. Named after the report."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.torchrun

SHORT_ORPHANS = "schema_version = 1\n[checkpoint]\norphan_s = 1\n"


def kill_trainer(loop, node):
    """SIGKILL one trainer of a node."""
    os.kill(max(loop.trainers(node).items())[1], signal.SIGKILL)


def signal_machine(loop, node, number):
    """Send a signal to every process of a node; what wakes up may end others before it is their turn."""
    for pid in loop.processes(node):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_pytorch_194710_a_parked_standby_ends_cleanly_with_the_job(waiting):
    """The standby of a finished job exits with 0 and without a traceback."""
    loop = waiting(nodes="1:2")
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    assert loop.active() == ["node-1"]
    loop.finish_well("node-1", "node-2")
    assert len(loop.plans()) == 1


def test_nvrx_348_a_worker_crashes_while_a_spare_is_alive(waiting):
    """The run goes on where it was, and the spare stays parked."""
    loop = waiting(nodes="2:3", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    kill_trainer(loop, "node-2")
    loop.wait_running(1)
    assert loop.told() == [("start", "initial_placement"), ("restart", "process_crash")]
    assert loop.active() == ["node-1", "node-2"]
    assert loop.plans()[-1]["standby"] == ["node-3"]
    assert not loop.trainers("node-3")
    loop.finish_well("node-1", "node-2", "node-3")


def test_pytorch_135712_182221_the_node_of_rank_0_is_lost_and_a_survivor_comes_late(job):
    """Every worker sees the new master, the group forms at the first try, and no rank moves."""
    loop = job("--steps", "150", "--step-s", "0.03", nodes="2:3", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.train_until(5)
    loop.request("replace", "node-1")  # so that rank 0 is on a node that does not host the rendezvous
    loop.wait_resumed(1)
    assert loop.active() == ["node-3", "node-2"]
    loop.request("uncordon", "node-1")
    loop.train_until(loop.step() + 15)
    os.kill(loop.agents["node-2"].process.pid, signal.SIGSTOP)
    loop.kill_machine("node-3")
    loop.wait_plan(3)
    time.sleep(1)  # the report's own delay of the survivor
    os.kill(loop.agents["node-2"].process.pid, signal.SIGCONT)
    loop.wait_resumed(2)
    assert loop.active() == ["node-1", "node-2"]
    assert [p["action"] for p in loop.plans()] == ["start", "replace", "replace"], loop.standing()
    masters = [{said["master"] for said in loop.starts(generation).values()} for generation in range(3)]
    assert [len(m) for m in masters] == [1, 1, 1]
    assert masters[0] != masters[1] != masters[2]  # a machine that serves again may get the same port again
    assert [len([e for e in loop.entries(rank) if "started" in e]) for rank in (0, 1)] == [3, 3]
    assert loop.wait_exit("node-1", 90) == 0, loop.standing()
    assert loop.wait_exit("node-2", 90) == 0, loop.standing()


def test_nvrx_pr_263_an_agent_dies_between_the_commit_and_its_arrival(waiting):
    """The others re-plan; nobody dies of a store timeout."""
    loop = waiting(nodes="2:3", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    os.kill(loop.agents["node-2"].process.pid, signal.SIGSTOP)
    kill_trainer(loop, "node-1")
    loop.wait_plan(2)
    loop.kill_machine("node-2")
    loop.wait_running(2)
    assert loop.told()[1:] == [("restart", "process_crash"), ("replace", "node_lost")]
    assert loop.active() == ["node-1", "node-3"]
    loop.finish_well("node-1", "node-3")


def test_pytorch_111646_a_whole_agent_tree_is_stopped(waiting):
    """Recovery within the lease and not the process group's timeout; the node that wakes up is fenced and parks."""
    loop = waiting(nodes="2:3", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    frozen_at = time.time_ns() // 1_000_000
    signal_machine(loop, "node-2", signal.SIGSTOP)
    loop.wait_running(1)
    plan = next(r for r in loop.records() if r.event.type == "plan_committed" and r.seq > 5)
    assert plan.recorded_at_ms - frozen_at < 10_000
    assert loop.events("node_lost")[0]["reason"] == "lease_expired"
    assert loop.active() == ["node-1", "node-3"]
    signal_machine(loop, "node-2", signal.SIGCONT)
    loop.wait_joined(4)
    loop.wait_for(lambda: not loop.trainers("node-2"), "the old life's worker to end")
    assert len({e["incarnation"] for e in loop.events("node_joined") if e["node"] == "node-2"}) == 2
    loop.finish_well("node-1", "node-2", "node-3")
    assert len(loop.plans()) == 2


def test_pytorch_147064_a_node_comes_back_with_a_new_agent_inside_its_old_lease(waiting):
    """The old life is fenced, the new one is a machine like any other, and one recovery was spent."""
    loop = waiting(nodes="2:3", nproc=1, conf={"lm_resiliency_heartbeat_timeout_ms": "40000"})
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    frozen, old = loop.processes("node-2"), loop.agents["node-2"]
    signal_machine(loop, "node-2", signal.SIGSTOP)
    loop.start("node-2")
    loop.wait_running(1)
    assert loop.told()[1:] == [("replace", "node_rejoined")]
    assert not loop.events("node_lost")
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    loop.wait_for(lambda: old.process.poll() is not None, "the old life to end")
    assert old.process.returncode == 1
    assert "in use by a live agent" in old.text()
    loop.finish_well("node-1", "node-2", "node-3")
    assert len(loop.plans()) == 2


def test_pytorch_67742_a_standby_is_told_to_leave(waiting):
    """SIGTERM: only that standby leaves, with exit code 0; nothing is decided. Its next life starts clean."""
    loop = waiting(nodes="1:2", nproc=1)
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    loop.agents["node-2"].process.terminate()
    assert loop.wait_exit("node-2") == 0, loop.standing()
    assert "Traceback" not in loop.agents["node-2"].text()
    assert [e["node"] for e in loop.events("node_left")] == ["node-2"]
    loop.start_all("node-2")
    loop.finish_well("node-1", "node-2")
    assert len(loop.plans()) == 1
    assert not loop.events("node_lost")


def test_pytorch_150916_an_active_agent_is_told_to_leave(waiting):
    """SIGTERM: that node leaves at once, its place is taken, the run is not closed."""
    loop = waiting(nodes="2:3", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    loop.agents["node-2"].process.terminate()
    loop.wait_running(1)
    assert loop.active() == ["node-1", "node-3"]
    assert loop.wait_exit("node-2") != 0
    assert [p["action"] for p in loop.plans()] == ["start", "replace"]
    loop.finish_well("node-1", "node-3")


def test_nvrx_pr_391_a_ghost_with_the_same_node_id_is_ignored(waiting):
    """An agent killed while the run gathers does not count: its next life takes the place."""
    loop = waiting(nodes="3:3", nproc=1)
    loop.start_all("node-1", "node-2")
    loop.kill_machine("node-2")
    loop.start("node-2")
    loop.wait_joined(3)
    loop.start("node-3")
    loop.wait_running(0)
    (plan,) = loop.plans()
    lives = [e["incarnation"] for e in loop.events("node_joined") if e["node"] == "node-2"]
    placed = [a["incarnation"] for a in plan["assignments"] if a["node"] == "node-2"]
    assert placed == lives[1:]
    loop.finish_well("node-1", "node-2", "node-3")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with room for few files; unmounted at the end."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=64", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system of its own needs root, and a container that may mount")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def break_folder(logs):
    shutil.rmtree(logs)
    logs.write_text("not a folder any more")


def fill_disk(logs):
    full = subprocess.run(["touch", *map(str, range(100))], cwd=logs.parent, capture_output=True, check=False)
    assert b"No space left on device" in full.stderr


@pytest.mark.parametrize(
    ("disk", "how"), [("tmp_path", break_folder), pytest.param("small_disk", fill_disk, marks=pytest.mark.long)]
)
def test_nvrx_pr_421_one_agent_fails_on_its_own(waiting, request, disk, how):
    """A standby that cannot start its workers (its log folder is broken, its disk full) leaves; the next takes over."""
    logs = request.getfixturevalue(disk) / "logs"
    loop = waiting(nodes="2:4", nproc=1)
    loop.start_all("node-1", "node-2")
    loop.options = (*loop.options, f"--log-dir={logs}")
    loop.start_all("node-3")
    loop.options = loop.options[:-1]
    loop.start_all("node-4")
    loop.wait_running(0)
    how(logs)
    loop.kill_machine("node-2")
    loop.wait_for(lambda: loop.active() == ["node-1", "node-4"], "the next standby to be chosen")
    loop.wait_running(loop.plans()[-1]["to_generation"])
    assert loop.wait_exit("node-3") == 1
    assert [p["action"] for p in loop.plans()] == ["start", "replace", "replace"]
    loop.finish_well("node-1", "node-4")


def test_pytorch_69520_157318_an_agent_is_killed_after_the_work_is_done(waiting):
    """Whoever is left exits at once: torchrun alone would wait 300 s for the dead peer."""
    loop = waiting("--slow-end", "0:3", nodes="2:2", nproc=1)
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    loop.finish()
    loop.wait_for(lambda: bool(loop.events("workers_finished")), "node-2 to finish")
    loop.kill_machine("node-2")
    loop.wait_for(lambda: len(loop.events("workers_finished")) == 2, "node-1 to finish")
    begun = time.monotonic()
    assert loop.wait_exit("node-1") == 0, loop.standing()
    assert time.monotonic() - begun < 5
    assert len(loop.plans()) == 1


@pytest.mark.parametrize(("how", "bound_s"), [("dead", 30), pytest.param("silent", 150, marks=pytest.mark.long)])
def test_pytorch_76287_the_rendezvous_host_is_gone_for_good(waiting, how, bound_s):
    """Every agent, the standby too, exits non-zero with the reason, and leaves nothing running.

    Within 5 s where connections are refused, and 120 s of silence: the bounds leave room for a busy machine.
    """
    loop = waiting(nodes="2:3", nproc=1, policy=SHORT_ORPHANS)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    begun = time.monotonic()
    if how == "dead":
        loop.kill_machine("node-1")
    else:
        signal_machine(loop, "node-1", signal.SIGSTOP)
    for node in ("node-2", "node-3"):
        assert loop.wait_exit(node, 180) == 1, loop.standing()
        assert "the rendezvous host is gone" in loop.last_line(node)
        assert "Traceback" not in loop.agents[node].text()
    assert time.monotonic() - begun < bound_s
    for node in ("node-2", "node-3"):
        loop.wait_for(lambda node=node: not loop.processes(node), f"everything of {node} to end")


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.long)])
def test_pytorch_118891_one_rank_tears_down_slowly(waiting, seconds):
    """The node of the rendezvous finishes first, rank 0 elsewhere is slow: all wait for it, all exit with 0."""
    loop = waiting("--slow-end", f"0:{seconds}", nodes="2:3", nproc=2)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    loop.request("replace", "node-1")  # so that rank 0 is on a node that does not host the rendezvous
    loop.wait_running(1)
    loop.request("uncordon", "node-1")
    loop.request("replace", "node-2")
    loop.wait_running(2)
    assert loop.active() == ["node-3", "node-1"]
    loop.finish_well("node-1", "node-2", "node-3")
    assert [e["node"] for e in loop.events("workers_finished")] == ["node-1", "node-3"]
    assert [[e for e in loop.entries(rank) if "finished" in e] for rank in range(4)] == [[{"finished": "2"}]] * 4
    assert len(loop.plans()) == 3


def test_pytorch_68258_a_worker_that_never_runs_its_sigterm_handler(waiting):
    """A rank blocked in C, with a SIGTERM handler in Python, is stopped at once and not after 30 s.

    From the plan to new workers it is 1 s at most, in the quickest of three restarts: other work slows single ones.
    """
    policy = "schema_version = 1\n[recovery]\nrestarts_before_replace = 9\nno_progress_generations = 9\n"
    loop = waiting("--stuck-in-c", nodes="1:1", nproc=2, policy=policy)
    loop.start_all("node-1")
    loop.wait_running(0)
    for generation in (1, 2, 3):
        kill_trainer(loop, "node-1")
        loop.wait_running(generation)
    planned = [r.recorded_at_ms for r in loop.records() if r.event.type == "plan_committed"]
    started = [r.recorded_at_ms for r in loop.records() if r.event.type == "generation_started"]
    took_ms = [up - plan for plan, up in zip(planned, started, strict=True)][1:]
    assert min(took_ms) < 1_000, took_ms
    assert max(took_ms) < 10_000, took_ms


def test_kubeflow_1638_pytorch_67616_an_agent_is_restarted_after_it_was_replaced(waiting):
    """Not needed: exit 0. After the run closed: its outcome, exit 0. So its supervisor does not loop."""
    loop = waiting(nodes="2:3", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    loop.kill_machine("node-2")
    loop.wait_running(1)
    loop.start_all("node-4")
    loop.start("node-2")
    assert loop.wait_exit("node-2") == 0, loop.standing()
    assert "not needed" in loop.last_line("node-2")
    loop.finish_well("node-1", "node-3", "node-4")
    loop.start("node-1")
    assert loop.wait_exit("node-1") == 0, loop.standing()
    assert "is closed: succeeded" in loop.last_line("node-1")
    assert len(loop.plans()) == 2


def test_dlrover_1175_a_failure_that_always_comes_back(waiting):
    """It is halted with the reason after a few tries, and not repeated for ever."""
    loop = waiting("--fail", "1:*", nodes="2:3", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.finish()
    assert loop.wait_exit("node-1", 120) == 1, loop.standing()
    (closed,) = loop.events("run_closed")
    assert closed["outcome"] == "halted"
    assert closed["reason"] in loop.last_line("node-1")
    assert len(loop.plans()) < 8
    codes = {node: loop.wait_exit(node) for node in ("node-2", "node-3")}
    assert codes == {node: int(node in loop.active()) for node in codes}


def test_pytorch_76198_one_node_is_lost_with_max_restarts_left_at_0(waiting):
    """The survivors are held and restarted; torchrun's budget is not used."""
    loop = waiting(nodes="2:3", nproc=1, options=())
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    loop.kill_machine("node-2")
    loop.wait_running(1)
    assert loop.active() == ["node-1", "node-3"]
    loop.finish_well("node-1", "node-3")


def test_pytorch_67616_the_run_holds_until_a_node_joins(waiting):
    """Without a standby the survivors wait; the node that comes takes the slot."""
    loop = waiting(nodes="2:3", nproc=1)
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    loop.kill_machine("node-2")
    assert loop.wait_plan(2)["action"] == "hold"
    assert loop.agents["node-1"].process.poll() is None
    loop.start("node-5")
    loop.wait_running(1)
    assert loop.active() == ["node-1", "node-5"]
    loop.finish_well("node-1", "node-5")


def test_the_same_error_on_every_rank_is_the_programs(waiting):
    """One retry, then halt: no machine is blamed, the active agents exit with 1 and the standby with 0."""
    policy = "schema_version = 1\n[recovery]\nsettle_ms = 2000\n"  # the two nodes need not be equally quick here
    loop = waiting("--fail", "*:*", nodes="2:3", nproc=1, policy=policy)
    loop.start_all("node-1", "node-2", "node-3")
    loop.finish()
    codes = {node: loop.wait_exit(node) for node in ("node-1", "node-2", "node-3")}
    assert codes == {"node-1": 1, "node-2": 1, "node-3": 0}, loop.standing()
    assert loop.told() == [
        ("start", "initial_placement"),
        ("restart", "software_bug"),
        ("halt", "software_bug"),
    ], loop.standing()
    for node in ("node-1", "node-2"):
        assert loop.last_line(node) == "lm_resiliency: error: the run was halted: software_bug"


def test_torchft_58_torchtitan_4686_killed_between_two_saves(job):
    """Model, optimizer and position go on from one step: each step's loss is that of the run without a failure."""
    plain = job("--steps", "60", name="plain", nodes="1", nproc=2, backend="c10d", policy="")
    plain.start("alone")
    loop = job("--steps", "60", "--step-s", "0.03", nodes="1:1", nproc=2)
    loop.start_all("node-1")
    loop.train_until(20)
    kill_trainer(loop, "node-1")
    assert loop.wait_exit("node-1", 90) == 0, loop.standing()
    assert plain.wait_exit("alone") == 0
    assert len(loop.plans()) == 2
    assert [loop.losses(rank) for rank in (0, 1)] == [plain.losses(rank) for rank in (0, 1)]


def test_dlrover_pr_1749_killed_during_a_save(job, tmp_path):
    """The save that died leaves nothing dangling: the next generation trains on, and is no hang and no stall."""
    policy = "schema_version = 1\n[replay.hang]\nfloor_ms = 2000\n[replay.stall]\ncheckpoint_floor_ms = 2000\n"
    save = tmp_path / "model.pt"
    loop = job("--steps", "250", "--save", str(save), "--save-at", "15", nodes="1:1", nproc=2, policy=policy)
    loop.start_all("node-1")
    loop.wait_for(lambda: Path(f"{save}.begun").exists(), "the save to begin")
    os.kill(loop.trainers("node-1")[0], signal.SIGKILL)
    assert loop.wait_exit("node-1", 120) == 0, loop.standing()
    assert loop.told()[1:] == [("restart", "process_crash")], loop.standing()
    assert not loop.events("rank_hung") + loop.events("checkpoint_stalled")
    resumed = next(r for r in loop.records() if r.event.type == "training_resumed" and r.event.data.generation == 1)
    assert loop.records()[-1].recorded_at_ms - resumed.recorded_at_ms > 4_000, "longer than a detector needs"
    assert save.stat().st_size > 0


def test_torchft_329_the_advertised_address_is_used(waiting):
    """`--local-addr` says which interface peers use, for the link, the workers' store and the vaults."""
    loop = waiting(nodes="2:2", nproc=1, options=("--local-addr=127.0.0.3",))
    loop.start_all("node-1", "node-2")
    loop.wait_running(0)
    assert {e["address"] for e in loop.events("node_joined")} == {"127.0.0.3"}
    assert {said["master"].split(":")[0] for said in loop.starts(0).values()} == {"127.0.0.3"}
    loop.finish_well("node-1", "node-2")


def test_dlrover_1233_770_ranks_hold_different_steps(job):
    """One node's newest copies are far behind the other's: all agree on one step before anything loads."""
    loop = job("--steps", "120", "--step-s", "0.03", nodes="2:2", nproc=1)
    loop.start_all("node-1", "node-2")
    loop.train_until(25)
    (vault,) = [
        pid
        for pid in loop.processes("node-2")
        if b"lmr.integrations.gemini.vault" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(vault, signal.SIGSTOP)  # node-2 keeps nothing from here on
    loop.train_until(loop.step() + 30)
    os.kill(vault, signal.SIGCONT)
    kill_trainer(loop, "node-1")
    for node in ("node-1", "node-2"):
        assert loop.wait_exit(node, 120) == 0, loop.standing()
    assert len(loop.plans()) == 2, loop.standing()
    step = loop.plans()[1]["checkpoint"]["step"]
    assert {e["step"] for e in loop.events("state_restored") if e["generation"] == 1} == {step}
    assert {said["step"] for said in loop.starts(1).values()} == {step}
    assert loop.losses(0).keys() == loop.losses(1).keys() == set(range(1, 121))


def test_dlrover_pr_1357_a_relaunched_node_starts_with_a_lease_of_its_own(waiting):
    """Lost and started again at once: the old life's silence is not held against the new one."""
    loop = waiting(nodes="2:3", nproc=1)
    loop.start_all("node-1", "node-2", "node-3")
    loop.wait_running(0)
    loop.kill_machine("node-2")
    loop.start("node-2")
    loop.wait_running(1)
    loop.wait_joined(4)
    joined = [e["incarnation"] for e in loop.events("node_joined") if e["node"] == "node-2"]
    seen = len(loop.records())
    time.sleep(5)  # more than two leases
    assert not [r for r in loop.records()[seen:] if r.event.type == "node_lost"], loop.standing()
    assert joined[1] not in [e["incarnation"] for e in loop.events("node_lost")]
    loop.finish_well("node-1", "node-2", "node-3")
    assert len(loop.plans()) == 2


def test_torchtitan_930_killed_while_state_is_being_captured(job):
    """The step that is restored was complete on every node before it was chosen, and in the log."""
    loop = job("--steps", "120", nodes="2:2", nproc=2)
    loop.start_all("node-1", "node-2")
    for generation in range(3):
        loop.wait_resumed(generation, 90)
        loop.train_until(loop.step() + 15)
        kill_trainer(loop, "node-2")
        loop.wait_plan(generation + 2)
    for node in ("node-1", "node-2"):
        assert loop.wait_exit(node, 120) == 0, loop.standing()
    seen, complete = {}, set()
    for record in loop.records():
        data = record.event.to_json()["data"]
        if record.event.type == "checkpoint_captured":
            seen.setdefault(data["step"], set()).add(data["slot"])
            complete |= {data["step"]} if seen[data["step"]] == {0, 1} else set()
        if record.event.type == "plan_committed" and data["plan"]["action"] == "restart":
            assert data["plan"]["checkpoint"]["step"] in complete
    assert loop.losses(0).keys() == set(range(1, 121))


@pytest.mark.long
def test_torchtitan_930_killed_inside_an_asynchronous_save(pair, tmp_path):
    """All machines lose power while the script's checkpoint is being written: it is never named, the one before is."""
    policy = "schema_version = 1\ninterval = 9\n[recovery]\npublish_ms = 100\n"
    loop = pair("--dcp", str(tmp_path), "--dcp-stuck-at", "60", policy=policy)
    nodes = ("node-1", "node-2")
    loop.start_all(*nodes)
    loop.wait_for(lambda: list(tmp_path.glob("60/*")), "the files of step 60", 120)
    clean = {"step": 40, "verdict": "clean"}
    loop.wait_for(
        lambda: any(clean.items() <= e.items() for e in loop.events("replay_checked")), "step 40's check", 120
    )
    loop.wait_for(lambda: 40 in {e["step"] for e in loop.events("checkpoint_persisted")}, "checkpoint 40", 120)
    for node in nodes:
        loop.kill_machine(node)
        loop.agents[node].process.wait()
    assert not (tmp_path / "60" / ".metadata").exists()
    assert {e["step"] for e in loop.events("checkpoint_persisted")} == {20, 40}
    loop.start_all(*nodes)
    for node in nodes:
        assert loop.wait_exit(node, 180) == 0, loop.standing()
    again = loop.plans()[1]
    assert [(s["tier"], s["holder"]) for s in again["checkpoint"]["sources"]] == [("durable", str(tmp_path / "40"))] * 2
    assert not loop.events("restore_failed")
    assert loop.losses(0).keys() == loop.losses(1).keys() == set(range(1, 161))


def test_dlrover_pr_1727_1685_a_long_evaluation_or_checkpoint_is_not_a_hang(job, tmp_path):
    """Rank 0 takes four times the hang detector's floor for each, the others wait for it, and nobody is accused."""
    policy = "schema_version = 1\n[replay.hang]\nfloor_ms = 2000\n"
    save = ("--save", str(tmp_path / "model.pt"), "--save-at", "45", "--save-s", "8")
    loop = job("--steps", "60", "--evaluate-at", "30", *save, nodes="2:2", nproc=1, policy=policy)
    loop.start_all("node-1", "node-2")
    for node in ("node-1", "node-2"):
        assert loop.wait_exit(node, 120) == 0, loop.standing()
    assert (tmp_path / "model.pt.begun").exists()
    assert not loop.events("rank_hung") + loop.events("checkpoint_stalled")
    assert len(loop.plans()) == 1
