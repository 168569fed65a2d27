"""Exports: bundles and JSONL come back byte for byte, CSV is a table, traces are what Perfetto's own schema says."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from conftest import CORPUS, Replay

RECORDED = sorted(CORPUS.glob("*.jsonl"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_jsonl_round_trip_is_byte_identical(path: Path, tmp_path: Path, replay: Replay) -> None:
    """Recorded JSONL -> database -> bundle -> database -> JSONL is the file it was."""
    replay("import", path, "--into", tmp_path / "a.db")
    replay("export", tmp_path / "a.db", "-o", tmp_path / "run.lmrb.gz")
    replay("import", tmp_path / "run.lmrb.gz", "--into", tmp_path / "b.db")
    assert replay("export", tmp_path / "b.db", "-o", tmp_path / "back.jsonl").code == 0
    assert (tmp_path / "back.jsonl").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("form", ["bundle", "jsonl", "facts", "csv", "perfetto"])
def test_standard_output_gets_what_a_file_gets(form: str, tmp_path: Path) -> None:
    """Byte for byte, whatever the output's encoding is; the line about it goes to standard error."""
    log, file = CORPUS / "node-loss.jsonl", tmp_path / "run"
    command = [sys.executable, "-m", "lmr.replay_tool.main", "export", str(log), "--format", form, "-o"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    piped = subprocess.run([*command, "-"], capture_output=True, env=env, timeout=60, cwd=tmp_path)
    assert piped.returncode == 0
    assert piped.stderr.startswith(f"-: {form} of run node-loss".encode())
    subprocess.run([*command, str(file)], capture_output=True, timeout=60, check=True)
    if form == "bundle":  # its header says when it was made
        file.write_bytes(piped.stdout)
        whole = subprocess.run([*command[:3], "verify", str(file)], capture_output=True, timeout=60)
        assert whole.returncode == 0
    else:
        assert piped.stdout == file.read_bytes()
    assert [item.name for item in tmp_path.iterdir()] == ["run"]


def test_a_redacted_bundle_hides_names_and_still_verifies(tmp_path: Path, replay: Replay) -> None:
    """Hosts and people are gone from the bytes; it says that it is redacted."""
    bundle = tmp_path / "run.lmrb"
    assert replay("export", CORPUS / "operator-replace.jsonl", "-o", bundle, "--redact").code == 0
    text = bundle.read_text("utf-8")
    for name in ("node-3", "10.0.0.", "ana", "fan tray"):
        assert f'"{name}' not in text, name
    ran = replay("verify", bundle, "--json")
    assert any("redacted" in note for note in ran.json["notes"])


def test_csv_has_a_row_a_record(tmp_path: Path, replay: Replay) -> None:
    replay("export", CORPUS / "hang.jsonl", "-o", tmp_path / "hang.csv")
    with (tmp_path / "hang.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["seq"]) for row in rows] == list(range(1, 69))
    hung = next(row for row in rows if row["type"] == "rank_hung")
    assert hung["sentence"].startswith("rank 3 made no progress for 30.0 s in phase backward at step 86")
    assert json.loads(hung["data"])["ranks"] == [3]


def test_a_broken_export_leaves_no_half_file(tmp_path: Path, replay: Replay) -> None:
    source = tmp_path / "cut.jsonl"
    source.write_bytes((CORPUS / "hang.jsonl").read_bytes()[:-60])
    assert replay("export", source, "-o", tmp_path / "out.csv").code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["cut.jsonl"]


def test_json_trace_has_a_track_a_node(tmp_path: Path, replay: Replay) -> None:
    """Complete slices, instants and a counter, in microseconds, each on a named track."""
    path = tmp_path / "trace.json"
    assert replay("export", CORPUS / "node-loss.jsonl", "--format", "perfetto", "-o", path).code == 0
    events = json.loads(path.read_text())["traceEvents"]
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert set(named.values()) == {"run node-loss", *(f"node-{n}" for n in range(1, 7))}
    assert {event["ph"] for event in events} == {"M", "X", "i", "C"}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["tid"] in named
    incident = next(event for event in events if event["name"].startswith("incident 2"))
    assert incident["dur"] == 2_443_000
    assert incident["args"]["blamed"] == "node-2"


def test_protobuf_trace_is_valid_by_perfettos_schema(tmp_path: Path, replay: Replay) -> None:
    """Parsed by Perfetto's published schema: nothing unknown, every track declared, slices nest and end."""
    schema = pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="pip install perfetto brings the published schema"
    )
    path = tmp_path / "run.pftrace"
    assert replay("export", CORPUS / "lemon-node.jsonl", "-o", path).code == 0
    trace = schema.Trace()
    trace.ParseFromString(path.read_bytes())
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == path.stat().st_size, "the schema does not know something that was written"
    tracks = {p.track_descriptor.uuid: p.track_descriptor.name for p in trace.packet if p.HasField("track_descriptor")}
    assert {"training step", "node-3"} <= set(tracks.values())
    depth: dict[int, int] = defaultdict(int)
    last = 0
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id == 1
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert packet.timestamp >= last
        last = packet.timestamp
        assert event.track_uuid in tracks
        depth[event.track_uuid] += {event.TYPE_SLICE_BEGIN: 1, event.TYPE_SLICE_END: -1}.get(event.type, 0)
        assert depth[event.track_uuid] >= 0
    assert not any(depth.values())


@pytest.mark.parametrize("verb", [("report",), ("export",), ("export", "--format", "facts")])
@pytest.mark.parametrize("name", ["run.db", "link.html", "run.db-wal", "sqlite:///run.db"])
def test_what_is_read_is_never_written_over(tmp_path: Path, replay: Replay, verb: tuple[str, ...], name: str) -> None:
    """Neither under its own name nor through a link; the log verifies afterwards."""
    run = tmp_path / "run.db"
    replay("import", CORPUS / "node-loss.jsonl", "--into", run)
    (tmp_path / "link.html").symlink_to(run)
    (tmp_path / "run.db-wal").touch()
    source = f"sqlite:///{run}" if name.startswith("sqlite") else run
    ran = replay(verb[0], source, *verb[1:], "-o", tmp_path / name.removeprefix("sqlite:///"))
    assert (ran.code, "would be replaced; name another file" in ran.err) == (2, True)
    assert replay("verify", run).code == 0


def test_no_database_is_written_over(tmp_path: Path, replay: Replay) -> None:
    """Another run's log is as dear as this one's."""
    replay("import", CORPUS / "node-loss.jsonl", "--into", tmp_path / "other.db")
    for output in ("-o", tmp_path / "other.db"), ("--format", "jsonl", "-o", tmp_path / "other.db"):
        ran = replay("export", CORPUS / "hang.jsonl", *output)
        assert (ran.code, "is an SQLite database" in ran.err) == (2, True)
    assert replay("verify", tmp_path / "other.db").code == 0


def test_facts_are_not_written_over_the_artefacts_they_come_from(tmp_path: Path, replay: Replay) -> None:
    log = tmp_path / "facts.jsonl"
    replay("export", CORPUS / "hang.jsonl", "--format", "facts", "-o", log)
    before = log.read_bytes()
    assert replay("export", log, "-o", log).code == 2
    assert log.read_bytes() == before
