"""Last night's artefacts as facts: each kind read from files of its real shape, placed in a job, and decided on."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import HERE, Replay

sys.path.insert(0, str(HERE / "artefacts"))
from make_flight_records import record, write

from lmr.replay_tool.importers.exits import error_of
from lmr.replay_tool.importers.hostlist import hosts
from lmr.replay_tool.importers.stamps import stamp_ms

ARTEFACTS = HERE / "artefacts"
JOB = ("--nodes", "gpu-10,gpu-11,gpu-12", "--nproc-per-node", 8, "--year", 2026)


def facts(replay: Replay, tmp_path: Path, *words: object) -> list[dict[str, Any]]:
    """What an import finds, without the opening it makes up."""
    output = tmp_path / "facts.jsonl"
    ran = replay("import", *words, "-o", output)
    assert ran.code == 0, ran.err
    events = [json.loads(line) for line in output.read_text().splitlines()]
    opening = ("run_opened", "node_joined", "generation_started")
    return [event for event in events if event["type"] not in opening]


def test_torchelastic_error_file(replay: Replay, tmp_path: Path) -> None:
    """Node by folder, rank by node and local rank, time and kind from the file."""
    (fact,) = facts(replay, tmp_path, ARTEFACTS / "gpu-12/attempt_0/5/error.json", *JOB)
    assert fact["type"] == "worker_exited"
    assert (fact["data"]["node"], fact["data"]["rank"], fact["at_ms"]) == ("gpu-12", 21, 1_795_918_447_000)
    assert fact["data"]["error"]["kind"] == "out_of_memory"
    assert fact["data"]["error"]["type"] == "OutOfMemoryError"


def test_standard_output_gets_the_facts_alone(replay: Replay, tmp_path: Path) -> None:
    """What is told of them goes to standard error."""
    words = ("import", ARTEFACTS / "signal-rank_11.json", *JOB, "-o")
    replay(*words, tmp_path / "facts.jsonl")
    piped = replay(*words, "-")
    assert piped.out == (tmp_path / "facts.jsonl").read_text("utf-8")
    assert "1 fact found" in piped.err


def test_torchelastic_signal_file(replay: Replay, tmp_path: Path) -> None:
    (fact,) = facts(replay, tmp_path, ARTEFACTS / "signal-rank_11.json", *JOB)
    assert (fact["data"]["node"], fact["data"]["rank"], fact["data"]["signal"]) == ("gpu-11", 11, 9)


def test_agent_log(replay: Replay, tmp_path: Path) -> None:
    """The report's failures in the order of time; the echo is known by its words; hosts by their short names."""
    words = ("--nodes", "gpu-11,gpu-12", "--nproc-per-node", 4, "--year", 2026)
    first, second = facts(replay, tmp_path, ARTEFACTS / "torchrun.log", *words)
    assert (first["data"]["rank"], first["data"]["signal"], first["data"]["error"]["kind"]) == (1, 9, "signal")
    assert (second["data"]["rank"], second["data"]["error"]["kind"]) == (3, "collective")
    assert first["data"]["node"] == second["data"]["node"] == "gpu-11"
    assert second["at_ms"] - first["at_ms"] == 1_000


def test_nccl_watchdog(replay: Replay, tmp_path: Path) -> None:
    """Three of four ranks waited: the one that did not is the laggard."""
    words = ("--nodes", "a,b", "--nproc-per-node", 2, "--year", 2026)
    (fact,) = facts(replay, tmp_path, ARTEFACTS / "nccl.log", *words)
    assert (fact["type"], fact["data"]["ranks"], fact["data"]["stalled_ms"]) == ("rank_hung", [2], 600_061)
    assert fact["data"]["collective"] == {"group": "0", "seq": 18231, "op": "allreduce"}


def test_nccl_watchdog_of_a_job_of_unknown_size_blames_nobody(replay: Replay, tmp_path: Path) -> None:
    """Without the job's size nobody can say who did not wait."""
    (fact,) = facts(replay, tmp_path, ARTEFACTS / "nccl.log", "--nodes", "a,b", "--year", 2026)
    assert fact["data"]["ranks"] == []


def test_gloo_text(replay: Replay, tmp_path: Path) -> None:
    """Lost peers are echoes, one a rank."""
    words = ("--nodes", "a,b", "--nproc-per-node", 2, "--year", 2026)
    found = facts(replay, tmp_path, ARTEFACTS / "gloo.log", *words)
    assert [(fact["data"]["rank"], fact["data"]["error"]["kind"]) for fact in found] == [
        (0, "collective"),
        (2, "collective"),
    ]


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_flight_records_name_the_laggard(form: str, replay: Replay, tmp_path: Path) -> None:
    """The rank whose last enqueued collective is behind never came; pickled and JSON dumps say the same."""
    paths = write(tmp_path)
    if form == "json":
        for rank, path in enumerate(paths):
            path.write_text(json.dumps(record(rank)))
    words = ("--nodes", "a,b", "--nproc-per-node", 2)
    (fact,) = facts(replay, tmp_path, *paths, *words)
    assert (fact["type"], fact["data"]["ranks"]) == ("rank_hung", [2])
    assert fact["data"]["collective"] == {"group": "0", "seq": 311, "op": "all_reduce"}


def test_flight_records_name_the_rank_out_of_step(replay: Replay, tmp_path: Path) -> None:
    paths = write(tmp_path, odd=1)
    (fact,) = facts(replay, tmp_path, *paths, "--nodes", "a,b", "--nproc-per-node", 2)
    assert (fact["type"], fact["data"]["ranks"], fact["data"]["collective_seq"]) == ("collective_desynced", [1], 310)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("pwned",))


def test_a_flight_record_runs_no_code(replay: Replay, tmp_path: Path) -> None:
    """A pickle that wants to call something is refused, and nothing is called."""
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": [_Evil()], "pg_config": {}}))
    ran = replay("import", path, "--nodes", "a", "-o", tmp_path / "x.jsonl")
    assert (ran.code, ran.out) == (2, "")
    assert "plain data only" in ran.err


def test_kernel_messages(replay: Replay, tmp_path: Path) -> None:
    """Fatal and warning by code, repeated lines once, what programs cause not at all."""
    found = facts(replay, tmp_path, ARTEFACTS / "dmesg.txt", *JOB)
    assert [(f["data"]["node"], f["data"]["metric"], f["data"]["severity"]) for f in found] == [
        ("gpu-12", "xid_79", "fatal"),
        ("gpu-11", "xid_63", "warning"),
        ("gpu-11", "edac_ce", "warning"),
        ("gpu-11", "machine_check", "fatal"),
        ("gpu-10", "machine_check", "warning"),
    ]
    assert found[0]["data"]["device"] == "gpu:0000:3b:00"
    assert found[0]["at_ms"] == stamp_ms("2026-11-29T02:13:50Z", 2026)


def test_nvrx_cycles(replay: Replay, tmp_path: Path) -> None:
    """A node that the next cycle no longer has is lost; a cycle that keeps its nodes is only noted."""
    output = tmp_path / "facts.jsonl"
    ran = replay("import", *sorted(ARTEFACTS.glob("cycle_info.*")), "-o", output, "--json")
    assert (ran.json["nodes"], ran.json["standby"]) == (["gpu-10", "gpu-11", "gpu-12"], ["gpu-13"])
    assert any("cycle 1 ended with all its nodes" in note for note in ran.json["notes"])
    (fact,) = [json.loads(line) for line in output.read_text().splitlines() if "node_lost" in line]
    assert fact["data"]["node"] == "gpu-12"


def test_sacct(replay: Replay, tmp_path: Path) -> None:
    """The failed node and the step that ran out of memory; a step on several nodes is only noted."""
    exited, lost = facts(replay, tmp_path, ARTEFACTS / "sacct.txt", "--nproc-per-node", 8)
    assert (exited["data"]["node"], exited["data"]["error"]["kind"]) == ("gpu-11", "out_of_memory")
    assert (lost["type"], lost["data"]["node"]) == ("node_lost", "gpu-12")


def test_last_night_decided(replay: Replay, tmp_path: Path) -> None:
    """Kernel log and agent log together: the engine would have replaced the node whose GPU fell off the bus."""
    into = tmp_path / "night.db"
    words = ("--nodes", "gpu-10,gpu-11,gpu-12", "--standby", "gpu-13", "--nproc-per-node", 4, "--year", 2026)
    lines = (ARTEFACTS / "dmesg.txt").read_text().splitlines(keepends=True)
    (tmp_path / "dmesg.txt").write_text("".join(lines[:3]))
    ran = replay(
        "import", tmp_path / "dmesg.txt", ARTEFACTS / "torchrun.log", *words, "--durable-step", 1000, "--into", into
    )
    assert ran.code == 0, ran.err
    told = replay("explain", into, "incident:2", "--json").json
    assert told["headline"] == "replace gpu-12 in generation 1 from step 1,000 (uncertified)"
    assert replay("verify", into).code == 0


def test_what_no_reader_knows_is_refused(replay: Replay, tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_text("shall I compare thee\n")
    ran = replay("import", path, "-o", tmp_path / "x.jsonl")
    assert ran.code == 2
    assert "no artefact this tool knows" in ran.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu-[01-03,07],login1", ["gpu-01", "gpu-02", "gpu-03", "gpu-07", "login1"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("one", ["one"]),
    ],
)
def test_hostlists(text: str, expected: list[str]) -> None:
    assert hosts(text) == expected


@pytest.mark.parametrize(
    "line",
    [
        "E1129 02:14:07.123000 4123 api.py:869] failed",
        "[rank0]:[E1129 02:14:07.123456789 ProcessGroupNCCL.cpp:629] x",
        "  time      : 2026-11-29_02:14:07.123", "2026-11-29T03:14:07.123+01:00 host kernel: x",
        "2026-11-29 02:14:07,123 INFO x",
        "2026-11-28T21:14:07.123-0500",
    ],
)  # fmt: skip
def test_times_in_all_spellings(line: str) -> None:
    assert stamp_ms(line, 2026) == 1_795_918_447_123


def test_equal_errors_have_equal_fingerprints() -> None:
    """Numbers, addresses and paths do not count; the words do."""
    one = error_of("IndexError: index 7 is out of range at 0x7f2a in /home/a/x.py", None)
    two = error_of("IndexError: index 9 is out of range at 0x7c1b in /home/b/x.py", None)
    other = error_of("IndexError: list is empty", None)
    assert one is not None
    assert two is not None
    assert other is not None
    assert one.fingerprint == two.fingerprint != other.fingerprint
