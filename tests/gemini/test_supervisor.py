"""The supervisor around a worker: what it reports, when it holds, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from node_double import BOOTSTRAP, NodeDouble

from lmr.integrations.torchrun import local_socket

Start = Callable[..., dict[str, Any]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeDouble]:
    one = NodeDouble("node-0", tmp_path)
    yield one
    one.close()


def run(node: NodeDouble, tmp_path: Path, body: str, module: bool = False) -> None:
    """Start one worker with this script."""
    script = tmp_path / "user_script.py"
    script.write_text(body)
    node.launch(["-m", "user_script"] if module else [str(script)], [0], 1, 1)


def exit_of(node: NodeDouble) -> dict[str, Any]:
    return node.workers_say.wait(20, kind="exited")[0]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, timeout_s: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not alive(pid)


@pytest.mark.parametrize(
    ("body", "code", "killed_by", "error"),
    [
        ("print('done')", 0, None, None),
        ("raise SystemExit(3)", 3, None, {"kind": "unknown", "type": None, "fingerprint": None}),
        ("import os; os._exit(4)", 4, None, {"kind": "unknown", "type": None, "fingerprint": None}),
        ("raise ValueError('bad')", 1, None, {"kind": "exception", "type": "ValueError"}),
        ("raise RuntimeError('Connection closed by peer')", 1, None, {"kind": "collective", "type": "RuntimeError"}),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            None,
            9,
            {"kind": "signal", "type": "SIGKILL", "fingerprint": None},
        ),
        (
            "import atexit, os; atexit.register(os.abort); raise RuntimeError('Connection closed by peer')",
            None,
            6,
            {"kind": "collective", "type": "RuntimeError"},
        ),
    ],
    ids=["done", "exit-code", "os-exit", "exception", "collective", "killed", "aborted-on-the-way-out"],
)
def test_every_end_is_reported(
    node: NodeDouble, tmp_path: Path, body: str, code: int | None, killed_by: int | None, error: Any
) -> None:
    run(node, tmp_path, body)
    said = exit_of(node)
    assert (said["rank"], said["generation"], said["exit_code"], said["signal"]) == (0, 0, code, killed_by)
    assert said["error"] is None if error is None else said["error"].items() >= error.items()


def test_it_holds_until_it_is_told_to_exit(node: NodeDouble, tmp_path: Path) -> None:
    run(node, tmp_path, "raise ValueError('bad')")
    exit_of(node)
    time.sleep(0.3)
    assert node.workers[0].poll() is None
    local_socket.send(node.supervisors[0], {"kind": "exit", "code": 7})
    assert node.workers[0].wait(5) == 7


def test_a_module_is_supervised_like_a_script(node: NodeDouble, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    run(node, tmp_path, "import sys; print(__name__, sys.argv)", module=True)
    assert exit_of(node)["exit_code"] == 0
    assert "__main__" in node.output(0, 0)


def test_the_script_sees_what_it_would_see_without_us(node: NodeDouble, tmp_path: Path) -> None:
    run(node, tmp_path, "import os, sys; print(os.getpgrp() == os.getppid(), len(sys.argv), 'torch' in sys.modules)")
    assert exit_of(node)["exit_code"] == 0
    assert node.output(0, 0).strip() == "True 1 False"


def test_a_subprocess_of_the_trainer_is_no_worker(node: NodeDouble, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("print('helped')")
    run(node, tmp_path, f"import subprocess, sys; subprocess.check_call([sys.executable, '{tmp_path}/helper.py'])")
    assert exit_of(node)["exit_code"] == 0
    assert node.output(0, 0).strip() == "helped"
    assert len(node.workers_say.having(kind="hello", role="supervisor")) == 1


def test_the_trainer_dies_with_its_supervisor(node: NodeDouble, tmp_path: Path) -> None:
    run(node, tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    node.workers_say.wait(kind="hello", role="supervisor")
    while not node.output(0, 0).strip():
        time.sleep(0.01)
    node.workers[0].kill()
    assert gone(int(node.output(0, 0)))


def test_everything_dies_when_the_node_runtime_is_gone(node: NodeDouble, tmp_path: Path) -> None:
    run(node, tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    node.workers_say.wait(kind="hello", role="supervisor")
    while not node.output(0, 0).strip():
        time.sleep(0.01)
    node.supervisors[0].shutdown(2)
    assert node.workers[0].wait(5) == -signal.SIGKILL
    assert gone(int(node.output(0, 0)))


def test_what_a_failed_trainer_leaves_behind_is_killed(node: NodeDouble, tmp_path: Path) -> None:
    run(
        node,
        tmp_path,
        "import os, subprocess\nprint(subprocess.Popen(['sleep', '60']).pid, flush=True)\nos._exit(1)",
    )
    exit_of(node)
    assert gone(int(node.output(0, 0)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_worker_reaches_the_trainer(node: NodeDouble, tmp_path: Path, number: signal.Signals) -> None:
    run(
        node,
        tmp_path,
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(5))\nprint('ready', flush=True)\ntime.sleep(60)",
    )
    while "ready" not in node.output(0, 0):
        time.sleep(0.01)
    node.workers[0].send_signal(number)
    assert exit_of(node)["exit_code"] == 5
    assert node.workers[0].wait(5) == 5, "told to end, it does not hold for long"


def test_without_a_node_runtime_the_script_runs_unprotected(tmp_path: Path) -> None:
    env = {
        **os.environ,
        "RANK": "0",
        "WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": "x",
        "LMR_AGENT_SOCKET": "lmr-nobody-listens-here",
        "PYTHONPATH": str(BOOTSTRAP),
    }
    script = tmp_path / "script.py"
    script.write_text("print('ran')")
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert len(done.stderr.splitlines()) == 1
    assert "unprotected" in done.stderr


@pytest.mark.parametrize("missing", ["RANK", "TORCHELASTIC_RUN_ID", "LMR_AGENT_SOCKET"])
def test_other_processes_are_left_alone(tmp_path: Path, missing: str) -> None:
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x", "LMR_AGENT_SOCKET": "y"}
    env["PYTHONPATH"] = str(BOOTSTRAP)
    del env[missing]
    script = tmp_path / "script.py"
    script.write_text("import sys; print([m for m in sys.modules if m.startswith('lmr')])")
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_trainer_works_while_its_agent_is_there_and_ends_when_it_is_frozen(
    node: NodeDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen agent cannot stop its workers before its lease is taken; the supervisor can."""
    monkeypatch.setenv("LMR_FENCE_MS", "1000")
    run(node, tmp_path, "import time; time.sleep(60)")
    node.workers_say.wait(20, kind="hello", role="supervisor")
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        local_socket.send(node.supervisors[0], {"kind": "here", "until_s": time.monotonic() + 1})
        time.sleep(0.1)
    assert not node.workers_say.having(kind="exited")
    ended = exit_of(node)
    assert (ended["exit_code"], ended["signal"]) == (None, signal.SIGKILL)


def test_a_shadowed_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the hidden one')")
    env = {**os.environ, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", "print('ran')"], env=env, capture_output=True, text=True, timeout=20)
    assert done.stdout == "the hidden one\nran\n"
