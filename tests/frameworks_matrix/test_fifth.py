"""The adapter printed in docs/adapters.md, word for word, on a framework it was written for."""

import os
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torchrun, pytest.mark.long, pytest.mark.timeout(900)]

HERE = Path(__file__).parent / "fifth"
DOCUMENT = Path(__file__).parents[2] / "docs" / "adapters.md"


def test_the_documented_adapter_works(drill, tmp_path):
    """Two optimizers, two micro-batches a step, a counter of the framework's own: all of it comes back."""
    code = DOCUMENT.read_text().split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "spark_lmr.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), str(HERE), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    loop = drill(
        "fifth",
        [str(HERE / "train_with_spark.py")],
        environ={"LM_RESILIENCY_ADAPTERS": "spark.trainer=spark_lmr", "PYTHONPATH": path},
    )
    assert loop.step() == 60


def test_two_frameworks_in_one_process_end_with_one_clear_error(jobs, tmp_path):
    """The script meets the error where it initialises the second one, and the run ends as for any error of a script.

    The ranks wait for each other before they meet it. Where the machine still lets one of them end much later than the
    other, the first counts as one process's crash, and is retried as such.
    """
    code = DOCUMENT.read_text().split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "spark_lmr.py").write_text(code)
    (tmp_path / "flint_lmr.py").write_text(code.replace("spark", "flint").replace("Spark", "Flint"))
    shutil.copytree(HERE / "spark", tmp_path / "flint")
    script = tmp_path / "both.py"
    script.write_text(
        "import os, pathlib, time\n"
        "import flint.trainer, spark.trainer, torch\n"
        "from torch.nn import Linear, ReLU, Sequential\n"
        "def model():\n"
        "    wrapped = torch.nn.Module()\n"
        "    wrapped.module = Sequential(Linear(1, 1), ReLU(), Linear(1, 1))\n"
        "    return wrapped\n"
        "spark.trainer.Trainer(model())\n"
        "here, rank, ranks = pathlib.Path(__file__).parent, os.environ['RANK'], int(os.environ['WORLD_SIZE'])\n"
        "life = len(list(here.glob(f'rank-{rank}-*')))\n"
        "(here / f'rank-{rank}-{life}').touch()\n"
        "while len(list(here.glob(f'rank-*-{life}'))) < ranks:\n"
        "    time.sleep(0.005)\n"
        "flint.trainer.Trainer(model())\n"
    )
    path = os.pathsep.join([str(tmp_path), str(HERE), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    adapters = "spark.trainer=spark_lmr,flint.trainer=flint_lmr"
    job = jobs("both", [str(script)], nodes="1", environ={"LM_RESILIENCY_ADAPTERS": adapters, "PYTHONPATH": path})
    agent = job.start("node-1")
    assert job.wait_exit("node-1", 240) == 1
    said = {line for line in agent.text().splitlines() if "FrameworkConflict: Spark already trains" in line}
    assert said, job.standing()
    assert all("Flint cannot be protected beside it" in line for line in said)
    first, *retries, last = job.plans()
    assert first["action"] == "start"
    assert [p["action"] for p in retries] in (["restart"], ["restart"] * 2), job.standing()
    assert (last["action"], last["reason"]) == ("halt", "software_bug"), job.standing()


def test_an_undisturbed_run_that_does_not_end_does_not_take_the_others_with_it(jobs, tmp_path):
    """All ranks (one here: stacks of several mix) have saved what they hold: where each thread stands is told."""
    script = tmp_path / "stuck.py"
    script.write_text(
        "import os, pathlib, sys, threading\n"
        "out = pathlib.Path(sys.argv[1])\n"
        "(out.parent / f\"life-{os.environ['TORCHELASTIC_RESTART_COUNT']}\").touch()\n"
        "pathlib.Path(f\"{sys.argv[1]}.rank{os.environ['RANK']}.pt\").touch()\n"
        "threading.Event().wait()\n"
    )
    job = jobs("plain", [str(script), "{out}"], nodes="1", nproc=1, backend="c10d")
    job.start("alone", PYTHONFAULTHANDLER="1")
    with pytest.warns(UserWarning, match='did not end by itself(.|\n)*stuck.py", line 5'):
        job.finish_what_is_compared_with(1, exit_s=2.0)
    assert [path.name for path in tmp_path.glob("plain/life-*")] == ["life-0"]
