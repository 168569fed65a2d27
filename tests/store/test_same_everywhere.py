"""The same log gives the same bytes, the same state and the same decisions wherever it is read.

On both dialects, under any hash seed and locale, before and after a bundle, and under each Python that is at hand.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from interpreters import interpreter
from sqlalchemy.engine import make_url

from lmr.store import open_log
from lmr.store.bundle import export_bundle, import_bundle

ROOT = Path(__file__).parent.parent.parent
RECORDED = Path(__file__).parent / "recorded" / "story.bundle"
RUN = "story"
REPLAY = """
import hashlib, sys
from lmr.engine.decide import decide
from lmr.engine.record import payload_bytes
from lmr.engine.reduce import apply
from lmr.engine.state import State

def replayed(records):
    total, state, decisions = hashlib.sha256(), State(), 0
    for record in records:
        total.update(record.body + record.hash.encode())
        apply(state, record)
        decision = decide(state)
        if decision is not None:
            decisions += 1
            total.update(payload_bytes(decision))
    assert decisions > 5
    return total.hexdigest()
"""
FROM_LOG = (
    REPLAY
    + """
from lmr.store import open_log
with open_log(sys.argv[1], create=False, read_only=True) as log:
    print(replayed(log.read("story")))
"""
)
FROM_BUNDLE = (
    REPLAY
    + """
import json
from lmr.engine.record import genesis_hash, open_record, record_hash

def records(path):
    previous = genesis_hash("story")
    with open(path, "rb") as lines:
        for line in lines:
            body = line.rstrip(b"\\n")
            if "event_id" in json.loads(body):
                hash_ = record_hash(previous, body)
                yield open_record(body, previous, hash_)
                previous = hash_

print(replayed(records(sys.argv[1])))
"""
)


def _replayed(program: str, source: str, python: str = sys.executable, **env: str) -> str:
    command = [python, "-c", program, source]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **env}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What this process's Python makes of the recorded log in SQLite."""
    path = tmp_path_factory.mktemp("same") / "events.db"
    with open_log(path) as log:
        import_bundle(log, RECORDED)
    digest = _replayed(FROM_LOG, str(path), PYTHONHASHSEED="0")
    assert len(digest) == 64
    return digest


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONHASHSEED": "1", "LC_ALL": "C"},
        {"PYTHONHASHSEED": "2", "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu"},
        {"PYTHONHASHSEED": "3", "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=["C", "Turkish", "ASCII only"],
)
def test_on_both_dialects_under_any_hash_seed_and_locale(url: str, expected: str, env: dict[str, str]) -> None:
    with open_log(url) as log:
        import_bundle(log, RECORDED)
    where = make_url(url).render_as_string(hide_password=False)
    assert _replayed(FROM_LOG, where, **env) == expected


def test_after_export_and_import_from_one_dialect_to_the_other(
    url: str, expected: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    other = (
        f"sqlite:///{tmp_path}/other.db" if url.startswith("postgresql") else request.getfixturevalue("postgres_url")
    )
    with open_log(url) as log, open_log(other) as second:
        import_bundle(log, RECORDED)
        export_bundle(log, RUN, tmp_path / "moved.bundle")
        import_bundle(second, tmp_path / "moved.bundle")
        assert [(r.body, r.hash) for r in second.read(RUN)] == [(r.body, r.hash) for r in log.read(RUN)]
    assert _replayed(FROM_LOG, other, PYTHONHASHSEED="1") == expected


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_under_each_python(version: str, expected: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    inside = str(tmp_path / "venv" / "bin" / "python")
    command = [inside, "-m", "pip", "install", "--quiet", "pydantic>=2.7,<3"]
    if subprocess.run(command, capture_output=True, timeout=240).returncode:
        pytest.skip(f"pydantic cannot be installed for Python {version} here")
    assert _replayed(FROM_BUNDLE, str(RECORDED), inside, PYTHONHASHSEED="4") == expected
