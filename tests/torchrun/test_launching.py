"""The ready scripts for ssh and Slurm start a real run, lose a machine, and end with the run's exit code.

Stand-ins for `ssh`, `srun` and `scontrol` reach "machines" that are folders of this one; torchrun, the agents, the
training, `lmr status` and the signals are real.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torchrun, pytest.mark.long]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SHIMS = Path(__file__).parents[1] / "operate" / "shims"
HOSTS = ("localhost", "nid-2", "nid-3")


class Launched:
    """A run that a ready script started; its machines are looked at as those of any job."""

    def __init__(self, job, folder, by, event_log):
        self.job = job(nodes="2:3", nproc=1, policy="", log_url=event_log)
        self.by, self.event_log = by, event_log
        shims = folder / "bin"
        shims.mkdir()
        for name in ("ssh", "srun", "scontrol"):
            (shims / name).symlink_to(SHIMS / name)
        run_dir = folder / "run" if by == "slurm" else Path("run")
        root = folder if by == "slurm" else folder / HOSTS[0]
        self.job.folder = root / "run"
        self.out = folder / "script.out"
        environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith("LM_RESILIENCY_")},
            "PATH": f"{shims}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parent / "scripts"),
            "OMP_NUM_THREADS": "1",
            "TRAINING_ARGUMENTS": f"--steps 150 --step-s 0.03 --out {self.log}",
            "SSH_SHIM_ROOT": str(folder),
            "RUN_ID": self.job.run_id,
            "RUN_DIR": str(run_dir),
            "RANKS_A_NODE": "1",
            "PORT": self.job.endpoint.rsplit(":", 1)[1],
            "MODULE": "your_training.module",
            "LMR_CLUSTER": str(self.job.folder),
        }
        if event_log is not None:
            environ["LM_RESILIENCY_EVENT_LOG"] = event_log
        if by == "slurm":
            environ |= {
                "SLURM_JOB_ID": "4711",
                "SLURM_JOB_NODELIST": ",".join(HOSTS),
                "SLURM_JOB_NUM_NODES": str(len(HOSTS)),
                "SLURM_SUBMIT_DIR": str(folder),
                "ACTIVE_NODES": "2",
            }
        command = {
            "ssh": [EXAMPLES / "ssh" / "launch.sh", "2", *HOSTS],
            "slurm": [EXAMPLES / "slurm" / "train.sbatch"],
        }
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                ["bash", *map(str, command[by])],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
            )

    @property
    def log(self):
        return self.job.log

    def stop(self):
        for host in HOSTS:
            self.job.kill_machine(host)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def launched(job, tmp_path):
    made = []

    def make(*arguments):
        made.append(Launched(job, tmp_path, *arguments))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.parametrize(
    ("by", "log"),
    [
        ("ssh", "embedded"),
        pytest.param("ssh", "postgresql", marks=pytest.mark.long),
        pytest.param("slurm", "embedded", marks=pytest.mark.long),
        pytest.param("slurm", "postgresql", marks=pytest.mark.long),
    ],
)
def test_a_ready_script_survives_the_loss_of_a_machine(launched, request, by, log):
    """With PostgreSQL it is the first machine, which serves the endpoint and decides; else any other active one."""
    run = launched(by, request.getfixturevalue("postgres_url") if log == "postgresql" else None)
    loop = run.job
    try:
        loop.train_until(30, 120)
        active = loop.active()
        victim = HOSTS[0] if log == "postgresql" else next(node for node in active if node != HOSTS[0])
        loop.kill_machine(victim)
        loop.wait_for(lambda: run.process.poll() is not None, "the script to end", 180)
    finally:
        said = run.out.read_text()
    assert run.process.returncode == 0, said
    assert "ended early" in said
    assert said.splitlines()[-1] == f"{loop.run_id}: succeeded (workers_finished)"
    assert loop.told()[1:] == [("replace", "node_lost")] * (victim in active), said
    assert victim not in loop.active()
    assert loop.losses(0).keys() == loop.losses(1).keys() == set(range(1, 151))
