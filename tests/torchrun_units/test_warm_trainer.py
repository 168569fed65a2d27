"""What a trainer finds that is a fork of the warm process: as in a fresh interpreter under its supervisor."""

import os
import resource
import signal
import subprocess
import sys

import pytest
from warm_double import Supervisor, has_ended, start_warm, state, until

from lmr.integrations.torchrun import local_socket
from lmr.integrations.torchrun.warm_job import UNMOVED_BY
from lmr.integrations.torchrun.warm_request import interpreter

NOT_SET = {"PYTHONUNBUFFERED": ""}
DRAWS = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.initial_seed())"
INHERITED = """
import os, resource
print(sorted(os.sched_getaffinity(0)), os.getpriority(0, 0), os.umask(0), resource.getrlimit(resource.RLIMIT_CORE))
"""
SIGNALS = """
import signal
of = signal.getsignal
print(of(signal.SIGINT) is signal.default_int_handler, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
print([int(n) for n in signal.valid_signals() if of(n) is signal.SIG_IGN])
"""


@pytest.fixture(scope="module")
def warm():
    with start_warm(2, **NOT_SET) as process:
        yield process
        assert process.poll() is None, "it ended"
        process.kill()


def last_line(warm, folder, body, **how):
    one = Supervisor(warm, folder, body, **how)
    one.pid()
    said = one.says_all()
    one.close()
    return said.splitlines()[-1]


@pytest.mark.parametrize(("options", "seen"), [(["-u"], True), ([], False)])
def test_what_a_script_prints_is_seen_at_once(warm, tmp_path, options, seen):
    """Python's `-u`, which torchrun gives every worker: nothing is lost of a trainer that is killed."""
    one = Supervisor(
        warm, tmp_path, "import os; print('printed'); os.kill(os.getpid(), 9)", options=options, environ=NOT_SET
    )
    one.pid()
    assert ("printed" in one.says_all()) == seen
    assert one.status() == signal.SIGKILL
    one.close()


def test_without_u_a_script_that_ends_has_said_all(warm, tmp_path):
    body = "print('one', end=''); print('two'); import sys; sys.stdout.buffer.write(b'')"
    assert last_line(warm, tmp_path, body, options=(), environ=NOT_SET) == "onetwo"


def test_no_two_trainers_draw_the_same_numbers(warm, tmp_path):
    drawn = [last_line(warm, tmp_path, DRAWS).split() for _ in range(3)]
    for numbers in zip(*drawn, strict=True):
        assert len(set(numbers)) == 3


def test_what_a_wrapper_gave_the_supervisor_is_the_trainers_too(warm, tmp_path):
    """Such as the processors of `torchrun --numa-binding`, which starts workers by `numactl`."""
    processor = max(os.sched_getaffinity(0))

    def wrap():
        os.sched_setaffinity(0, [processor])
        os.nice(3)
        os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 4096))

    with subprocess.Popen(["sleep", "60"], preexec_fn=wrap) as supervisor:
        expected = f"[{processor}] {os.getpriority(os.PRIO_PROCESS, 0) + 3} 23 (0, 4096)"
        assert last_line(warm, tmp_path, INHERITED, supervisor=supervisor.pid) == expected
        supervisor.kill()


def test_signals_are_as_the_supervisor_got_them(warm, tmp_path):
    always = [signal.SIGPIPE, signal.SIGXFSZ]
    for ignored, blocked in ([], []), ([signal.SIGUSR1], [signal.SIGUSR2]):
        one = Supervisor(warm, tmp_path, SIGNALS, ignored=[*always, *ignored], blocked=blocked)
        one.pid()
        first, second = one.says_all().splitlines()[-2:]
        assert first == f"True {[f'<Signals.{n.name}: {n.value}>' for n in blocked]}".replace("'", "")
        assert second == str(sorted(int(number) for number in [*always, *ignored]))
        one.close()


def test_a_signal_to_every_process_of_a_job_ends_no_trainer(warm, tmp_path):
    """As schedulers send them, some time before they end a job: scripts have handlers, the warm process must stay."""
    body = f"""
import signal
def handle(number, frame):
    print("handled", number, flush=True)
for number in {[int(number) for number in UNMOVED_BY]}:
    signal.signal(number, handle)
print("ready", flush=True)
while True:
    signal.pause()
"""
    one = Supervisor(warm, tmp_path, body)
    trainer = one.pid()
    assert one.says(b"ready")
    for number in UNMOVED_BY:
        warm.send_signal(number)
        os.kill(trainer, number)
        assert one.says(b"handled %d" % number)
    one.close()
    last_line(warm, tmp_path, "print()")


def test_large_environments_are_handed_on(warm, tmp_path):
    environ = {f"LARGE_{number}": "x" * 100_000 for number in range(3)}
    body = "import os; print(sum(len(value) for name, value in os.environ.items() if name.startswith('LARGE')))"
    assert last_line(warm, tmp_path, body, environ=environ) == "300000"


def test_a_mistake_in_the_script_looks_as_ever(warm, tmp_path):
    one = Supervisor(warm, tmp_path, "def f(:\n")
    one.pid()
    said = one.says_all()
    assert "warm.py" not in said
    assert "Traceback" not in said
    assert said.endswith("SyntaxError: invalid syntax\n")
    one.close()


def test_a_module_stays_main_until_the_process_ends(warm, tmp_path):
    (tmp_path / "some_module.py").write_text(
        "import atexit, sys\natexit.register(lambda: print(sys.modules['__main__'].__dict__ is globals(), sys.argv))"
    )
    argv = [sys.executable, "-u", "-m", "some_module", "argument"]
    assert last_line(warm, tmp_path, "", argv=argv) == f"True {[str(tmp_path / 'some_module.py'), 'argument']}"


def test_spawned_processes_begin_where_the_script_did(warm, tmp_path):
    body = """
import multiprocessing, os
def work(): print(os.getcwd(), multiprocessing.process.ORIGINAL_DIR, flush=True)
if __name__ == "__main__":
    for method in "fork", "spawn", "forkserver":
        process = multiprocessing.get_context(method).Process(target=work)
        process.start(); process.join()
"""
    one = Supervisor(warm, tmp_path, body)
    one.pid()
    assert one.says_all().splitlines()[-3:] == [f"{tmp_path} {tmp_path}"] * 3
    one.close()


def test_descriptors_do_not_outlive_an_exec(warm, tmp_path):
    body = """
import os
own = [int(d) for d in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{d}")]
print([(d, os.readlink(f"/proc/self/fd/{d}")) for d in own if d > 2 and os.get_inheritable(d)])
"""
    assert last_line(warm, tmp_path, body) == "[]"


@pytest.mark.parametrize("other", [["/another/venv", *interpreter()[1:]], [*interpreter()[:-1], 1]])
def test_workers_of_another_interpreter_start_cold(warm, tmp_path, other):
    one = Supervisor(warm, tmp_path, interpreter=other)
    assert local_socket.receive(one.socket) is None
    one.close()


def test_a_supervisor_that_has_given_up_gets_no_trainer(warm, tmp_path):
    warm.send_signal(signal.SIGSTOP)
    until(lambda: state(warm.pid) == "T", "it to stop")
    one = Supervisor(warm, tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w'); print('ran', flush=True)")
    one.socket.shutdown(0)
    warm.send_signal(signal.SIGCONT)
    last_line(warm, tmp_path, "print()")
    assert not one.says(b"ran")
    one.close()
    assert not (tmp_path / "ran").exists()


def test_what_a_failed_trainer_leaves_behind_is_killed_before_it_is_told(warm, tmp_path):
    """Nothing of it lives on beside the trainer of the next generation."""
    body = "import os, subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); os._exit(1)"
    one = Supervisor(warm, tmp_path, body)
    one.pid()
    assert one.status() == 1 << 8
    left = int(os.read(one.output, 1000).split()[-1])
    until(lambda: has_ended(left), "it to be killed", 5)
    one.close()
