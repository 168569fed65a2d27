"""The ready examples of docs/examples: linted, checked against published schemas, and dry-run.

The shims in `shims/` stand for ssh, srun, scontrol and torchrun; the last one records what each agent would be started
with, which torchrun's own parser and our own reading of settings must then accept. `lmr status` is the real one, over
recorded logs.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SBATCH = EXAMPLES / "slurm" / "train.sbatch"
SSH = EXAMPLES / "ssh" / "launch.sh"
JOBSETS = [EXAMPLES / "kubernetes" / name for name in ("jobset.yaml", "jobset-postgres.yaml")]
SHIMS = Path(__file__).parent / "shims"
NODES = ("localhost", "nid-2", "nid-3")


# -- linted ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [SBATCH, SSH, *sorted(SHIMS.iterdir())], ids=lambda path: path.name)
def test_scripts_pass_shellcheck(script: Path) -> None:
    for linter in (["bash", "-n"], [str(Path(sys.executable).with_name("shellcheck"))]):
        ran = subprocess.run([*linter, str(script)], capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def test_sbatch_asks_for_a_task_a_node_and_keeps_the_allocation() -> None:
    text = SBATCH.read_text()
    options = [
        line.split("#SBATCH ")[1].split("#")[0].strip() for line in text.splitlines() if line.startswith("#SBATCH")
    ]
    assert {"--ntasks-per-node=1", "--no-kill", "--requeue"} <= set(options)
    assert text.index("#SBATCH") < text.index("set -euo")  # Slurm stops reading options at the first command


def objects(manifest: Path) -> dict[str, dict[str, Any]]:
    return {found["kind"]: found for found in yaml.safe_load_all(manifest.read_text())}


def misfits(found: dict[str, Any]) -> str | None:
    """What the published models of the API say against an object; unknown keys are those that do not come back."""
    from kubeflow_trainer_api.models import io_k8s_api_core_v1_persistent_volume_claim_spec as claim
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    found = copy.deepcopy(found)
    try:
        if found["kind"] == "JobSet":
            back = JobsetV1alpha2JobSet.from_dict(found).to_dict()
        else:
            back = {**found, "spec": claim.IoK8sApiCoreV1PersistentVolumeClaimSpec.from_dict(found["spec"]).to_dict()}
    except ValueError as error:
        return str(error)
    return ", ".join(differing(found, back, found["kind"])) or None


def differing(given: Any, back: Any, path: str) -> Iterator[str]:
    """Where what came back is not what was given."""
    if isinstance(given, dict) and isinstance(back, dict):
        for key in given:  # what came back may have defaults filled in
            yield from differing(given.get(key), back.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        for n, (one, other) in enumerate(zip(given, back, strict=True)):
            yield from differing(one, other, f"{path}[{n}]")
    elif given != back:
        yield f"{path}: {given!r} is not known there"


@pytest.mark.parametrize("manifest", JOBSETS, ids=lambda path: path.stem)
def test_manifests_fit_the_published_schema(manifest: Path) -> None:
    found = objects(manifest)
    assert {kind: misfits(one) for kind, one in found.items()} == dict.fromkeys(found)


def test_the_check_of_manifests_finds_faults() -> None:
    good = objects(JOBSETS[0])["JobSet"]
    agents = good["spec"]["replicatedJobs"][0]["template"]["spec"]
    for change in ({"paralelism": 6}, {"completions": "six"}, {"completionMode": 3}):
        wrong = copy.deepcopy(good)
        wrong["spec"]["replicatedJobs"][0]["template"]["spec"] = {**agents, **change}
        assert misfits(wrong) is not None, change


@pytest.mark.parametrize("manifest", JOBSETS, ids=lambda path: path.stem)
def test_manifests_hang_together(manifest: Path) -> None:
    """Names and numbers that must agree, which no schema knows."""
    jobset = objects(manifest)["JobSet"]
    (job,) = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    command = container["command"]
    name = jobset["metadata"]["name"]
    assert f"--rdzv-endpoint={name}-{job['name']}-0-0.{name}:{container['ports'][0]['containerPort']}" in command
    assert next(word for word in command if "nnodes" in word).endswith(f":{spec['parallelism']}")
    assert spec["parallelism"] == spec["completions"]
    assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']}" in command
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    (term,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == {"jobset.sigs.k8s.io/jobset-name": name}


# -- dry-run ---------------------------------------------------------------------------------------------------------


def accepted(arguments: list[str]) -> Any:
    """The settings of an agent, as torchrun parses its command line and our backend reads it."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config
    from torch.distributed.run import get_args_parser, parse_min_max_nnodes

    from lmr.integrations.torchrun.config import read_config

    args = get_args_parser().parse_args(arguments)
    assert args.module
    assert args.training_script == "your_training.module"
    least, most = parse_min_max_nnodes(args.nnodes)
    conf = _parse_rendezvous_config(args.rdzv_conf)
    return read_config(
        RendezvousParameters(args.rdzv_backend, args.rdzv_endpoint, args.rdzv_id, least, most, None, **conf), {}
    )


@pytest.fixture
def dry_run(tmp_path: Path):
    """Runs a script with the shims; its exit code, its output, and each node's secret file, log and arguments."""

    def run(command: list[str], **environ: str) -> tuple[int, str, dict[str, list[str]]]:
        records = tmp_path / "records"
        records.mkdir()
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("LM_RESILIENCY_")},
                "PATH": f"{SHIMS}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                "RECORDS": str(records),
                "SSH_SHIM_ROOT": str(tmp_path),
                **environ,
            },
        )
        return (
            ran.returncode,
            ran.stdout + ran.stderr,
            {f.name: f.read_text().split("\n")[:-1] for f in records.iterdir()},
        )

    return run


def slurm(folder: Path) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": ",".join(NODES),
        "SLURM_JOB_NUM_NODES": str(len(NODES)),
        "SLURM_SUBMIT_DIR": str(folder),
        "RUN_DIR": str(folder),
        "ACTIVE_NODES": "2",
    }


def as_expected(said: dict[str, list[str]], folders: dict[str, Path], event_log: str) -> None:
    """Every node has an agent, the first serves the endpoint, contexts and secrets are where that node has them."""
    assert sorted(said) == sorted(NODES)
    for node, (secret, log, *arguments) in said.items():
        config = accepted(arguments)
        assert log == event_log
        assert config.endpoint == "localhost:29400"
        assert config.is_host is (node == "localhost")
        assert (config.min_nodes, config.max_nodes) == (2, 3)
        path = folders[node] / secret
        assert path.stat().st_mode & 0o077 == 0
        assert len(path.read_text().strip()) >= 32
        assert config.restart_context is not None
        assert config.restart_context.name == "context"


@pytest.mark.parametrize("event_log", ["", "postgresql+psycopg://u:p@127.0.0.1:1/d"], ids=["embedded", "postgresql"])
@pytest.mark.parametrize("by", ["slurm", "ssh"])
def test_a_script_starts_an_agent_a_node(recorded, dry_run, tmp_path, by: str, event_log: str) -> None:
    """And its exit code is the run's: 0 though a machine was lost, 2 where the log cannot be read."""
    log = Path(recorded("node-loss"))
    environ = {"RUN_ID": "node-loss", **({"LM_RESILIENCY_EVENT_LOG": event_log} if event_log else {})}
    if by == "slurm":
        code, text, said = dry_run(["bash", str(SBATCH)], **slurm(tmp_path), **environ)
        folders = dict.fromkeys(NODES, tmp_path)
    else:
        run = tmp_path / "localhost" / "run"
        run.mkdir(parents=True)
        log.rename(run / "events.db")
        code, text, said = dry_run(["bash", str(SSH), "2", *NODES], RUN_DIR="run", **environ)
        folders = {node: tmp_path / node for node in NODES}
    as_expected(said, folders, event_log)
    assert "ended early" in text
    if event_log:
        assert code == 2
    else:
        assert (code, text.splitlines()[-1]) == (0, "node-loss: succeeded (workers_finished)")


def test_a_halted_run_is_the_scripts_failure(recorded, dry_run, tmp_path) -> None:
    recorded("hold-then-halt")
    code, text, _ = dry_run(["bash", str(SBATCH)], **slurm(tmp_path), RUN_ID="hold-then-halt")
    assert (code, text.splitlines()[-1]) == (1, "hold-then-halt: halted (no_standby)")


def test_ssh_says_how_it_is_used() -> None:
    ran = subprocess.run(["bash", str(SSH), "2"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("usage: launch.sh ACTIVE HOST...")


@pytest.mark.parametrize("manifest", JOBSETS, ids=lambda path: path.stem)
def test_the_containers_command_is_one_our_backend_takes(manifest: Path) -> None:
    job = objects(manifest)["JobSet"]["spec"]["replicatedJobs"][0]
    (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][0] == "torchrun"
    config = accepted(container["command"][1:])
    assert (config.min_nodes, config.max_nodes, config.restart_context) == (4, 6, Path("/state/context.json"))
    given = {entry["name"] for entry in container["env"]}
    assert {"LM_RESILIENCY_NODE_ID", "LM_RESILIENCY_SECRET_FILE"} <= given
    assert ("LM_RESILIENCY_EVENT_LOG" in given) == ("postgres" in manifest.name)
