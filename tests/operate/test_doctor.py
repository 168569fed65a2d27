"""`lmr doctor`: every check passes where things are right, and fails with a cure where they are not."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from postgres_server import new_schema
from sqlalchemy import create_engine, make_url, text

from lmr.integrations.operate import doctor_machine, doctor_run
from lmr.integrations.operate.doctor import findings
from lmr.integrations.operate.finding import Finding
from lmr.integrations.operate.main import main as lmr
from lmr.store import StoreError, open_log


def test_this_machine_is_fine(capsys, monkeypatch) -> None:
    monkeypatch.delenv("LM_RESILIENCY_SECRET_FILE", raising=False)
    assert [found for found in findings() if not found.fine] == []
    assert lmr(["doctor"]) == 0
    said = capsys.readouterr().out
    for what in ("system", "python", "torch", "torchrun backend", "shared memory", "local sockets", "ports", "clock"):
        assert f"ok   {what}: " in said


def test_a_fault_is_a_line_with_its_cure_and_exit_code_1(capsys, monkeypatch) -> None:
    monkeypatch.setenv("LM_RESILIENCY_NODE_ID", "no such/name")
    assert lmr(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("bad  node id: ")]
    assert lines[at + 1] == "     cure: unset LM_RESILIENCY_NODE_ID, or name it so"


def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Callable[[], Finding]]:
    """A check by name, after its part of the world was broken."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    class NoSockets:
        AF_UNIX, SOCK_SEQPACKET = socket.AF_UNIX, socket.SOCK_SEQPACKET
        socket = create_server = staticmethod(refuse)

    def versions(**changed: str | None) -> None:
        real = importlib.metadata.version

        def version(name: str) -> str:
            found = changed.get(name, real(name) if name not in changed else None)
            if found is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr(importlib.metadata, "version", version)

    def broken(change: Callable[[], object], check: Callable[[], Finding]) -> Callable[[], Finding]:
        def run() -> Finding:
            change()
            return check()

        return run

    def patched(target: object, name: str, value: object, check: Callable[[], Finding]) -> Callable[[], Finding]:
        return broken(lambda: monkeypatch.setattr(target, name, value), check)

    def secret_file(content: bytes, mode: int) -> Callable[[], Finding]:
        def change() -> None:
            path = tmp_path / "secret"
            path.write_bytes(content)
            path.chmod(mode)
            monkeypatch.setenv("LM_RESILIENCY_SECRET_FILE", str(path))

        return broken(change, doctor_run.secret)

    entry = importlib.metadata.EntryPoint("lm_resiliency", "nowhere.at_all:factory", "torchrun.handlers")
    ours = importlib.metadata.EntryPoint("lm_resiliency", "lmr.integrations.torchrun.entry:x", "torchrun.handlers")

    def entries(*found: importlib.metadata.EntryPoint) -> Callable[[], Finding]:
        return patched(importlib.metadata, "entry_points", lambda group: list(found), doctor_machine.entry_point)

    return {
        "an old kernel": patched(doctor_machine.platform, "release", lambda: "4.18.0-513.el8", doctor_machine.system),
        "an old Python": patched(sys, "version_info", (3, 9, 18), doctor_machine.python),
        "no torch": broken(lambda: versions(torch=None), doctor_machine.torch),
        "an old torch": broken(lambda: versions(torch="2.9.1+cu128"), doctor_machine.torch),
        "no blake3": broken(lambda: versions(blake3=None), doctor_machine.digests),
        "no xxhash": broken(lambda: versions(xxhash=None), doctor_machine.digests),
        "an old framework": patched(
            doctor_machine, "installed", lambda: {"DeepSpeed": "0.1.0"}, doctor_machine.frameworks
        ),
        "no entry point": entries(),
        "two backends": entries(entry, ours),
        "a backend that cannot be loaded": entries(entry),
        "no memory": patched(doctor_machine, "available_bytes", lambda: 1 << 20, doctor_machine.memory),
        "no memfd": patched(os, "memfd_create", refuse, doctor_machine.shared_memory),
        "no local sockets": patched(doctor_machine, "socket", NoSockets, doctor_machine.local_sockets),
        "no ports": patched(doctor_machine, "socket", NoSockets, doctor_machine.ports),
        "no secret file": broken(
            lambda: monkeypatch.setenv("LM_RESILIENCY_SECRET_FILE", "/none"), doctor_run.secret
        ),
        "a short secret": secret_file(b"short", 0o600),
        "an open secret": secret_file(b"a secret of this test's run only", 0o644),
        "no policy": lambda: doctor_run.worker_policy(str(tmp_path / "none.toml")),
        "no endpoint": lambda: doctor_run.endpoint("29400"),
        "an unknown host": lambda: doctor_run.endpoint("host.invalid:29400"),
        "a log in no folder": lambda: next(doctor_run.event_log(str(tmp_path / "none" / "events.db"))),
    }  # fmt: skip


CASES = sorted(failing(pytest.MonkeyPatch(), Path("/nowhere")))


@pytest.mark.parametrize("case", CASES)
def test_each_fault_is_found_and_has_a_cure(case: str, monkeypatch, tmp_path) -> None:
    found = failing(monkeypatch, tmp_path)[case]()
    assert not found.fine
    assert found.cure
    assert found.detail


def test_every_check_has_a_fault_above() -> None:
    """`clock` alone has none: a free-running clock is said, and no decision depends on it."""
    text = Path(__file__).read_text()
    checks = [*doctor_machine.CHECKS, *doctor_run.CHECKS]
    untested = [c.__name__ for c in checks if f"doctor_machine.{c.__name__}" not in text and c is not doctor_run.node
                and f"doctor_run.{c.__name__}" not in text]  # fmt: skip
    assert untested == ["clock"]


def test_a_second_distribution_with_our_backends_name_is_found(tmp_path) -> None:
    """A real one beside ours: torchrun would silently take whichever comes first."""
    other = tmp_path / "other_resiliency-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-resiliency\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[torchrun.handlers]\nlm_resiliency = other.backend:factory\n")
    ran = subprocess.run(
        [Path(sys.executable).with_name("lmr"), "doctor"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    lines = ran.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("bad  torchrun backend: "))
    assert "other.backend:factory (other-resiliency)" in lines[at]
    assert "(lm-resiliency-engine)" in lines[at]
    assert lines[at + 1].startswith("     cure: torchrun takes the first it finds: pip uninstall")
    assert ran.returncode == 1


def test_the_endpoint_answers_or_is_ours_to_serve() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        answering = doctor_run.endpoint(f"localhost:{port}")
    assert answering.fine
    assert "answers" in answering.detail
    free = doctor_run.endpoint(f"127.0.0.1:{port}")
    assert free.fine
    assert "is this machine" in free.detail


def test_an_event_log_is_opened_and_timed(tmp_path) -> None:
    log = str(tmp_path / "events.db")
    for name in (log, f"sqlite:///{log}"):
        (new,) = doctor_run.event_log(name)
        assert new.fine
        assert "not there yet" in new.detail
    open_log(log).close()
    assert [(f.what, f.fine) for f in doctor_run.event_log(log)] == [
        ("event log", True),
        ("log's clock", True),
        ("way to the log", True),
    ]


def test_an_empty_database_is_fine_if_its_role_may_make_the_log(own_postgres) -> None:
    """What a run finds the first time; and what PostgreSQL 15 and newer give a role that does not own the schema."""
    (new,) = doctor_run.event_log(new_schema(own_postgres.url))
    assert new.fine, new
    assert "holds none yet; the first agent of a run makes it" in new.detail
    engine = create_engine(own_postgres.url)
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE guest LOGIN"))
        connection.execute(text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
    engine.dispose()
    guests = make_url(own_postgres.url).set(username="guest").render_as_string(hide_password=False)
    (refused,) = doctor_run.event_log(guests)
    assert not refused.fine
    assert refused.cure.startswith("GRANT CREATE ON SCHEMA public TO the role of the URL")
    with pytest.raises(StoreError, match="permission denied"):
        open_log(guests)


def test_a_database_that_is_away_or_not_ours_has_a_cure(own_postgres, postgres_url) -> None:
    open_log(own_postgres.url).close()
    assert all(found.fine for found in doctor_run.event_log(own_postgres.url))
    own_postgres.stop("immediate")
    (away,) = doctor_run.event_log(own_postgres.url)
    assert not away.fine
    assert away.cure.startswith("start the server")
    engine = create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE events (invoice int)"))
    engine.dispose()
    (foreign,) = doctor_run.event_log(postgres_url)
    assert not foreign.fine
    assert foreign.cure
    own_postgres.start()


def test_a_clock_that_is_apart_is_found(tmp_path, monkeypatch) -> None:
    log = str(tmp_path / "events.db")
    open_log(log).close()
    real = doctor_run.time.time_ns
    monkeypatch.setattr(doctor_run.time, "time_ns", lambda: real() - 5_000_000_000)
    found = {finding.what: finding for finding in doctor_run.event_log(log)}
    assert not found["log's clock"].fine
    assert "chrony" in found["log's clock"].cure
