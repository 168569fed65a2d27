"""The command: every verb answers in text and JSON; whatever cannot be read is one line and exit code 2."""

from __future__ import annotations

import gzip
import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CORPUS, Replay

from lmr.replay_tool.command_line import ARGUMENTS
from lmr.replay_tool.manual import PAGES

NODE_LOSS = CORPUS / "node-loss.jsonl"


@pytest.mark.parametrize("verb", list(PAGES))
def test_help_is_a_manual_page(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each verb's help has a description, examples that begin with the command, and its exit codes."""
    from lmr.replay_tool.main import main

    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"lmr-replay {verb}" in text.partition("examples:")[2]
    assert "exit codes:" in text
    assert PAGES[verb].description.split()[0] in text


def test_every_verb_has_a_page_and_arguments() -> None:
    assert list(PAGES) == list(ARGUMENTS)


@pytest.mark.parametrize(
    "words",
    [
        ("verify",), ("timeline",), ("timeline", "--incident", "2"), ("timeline", "--node", "node-2"),
        ("timeline", "--since", "+20"), ("explain",), ("explain", "last", "--why-not", "restart"), ("state",),
        ("state", "--at", "12"), ("diff", "--at", "10", "--at", "40"), ("bisect",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_text_and_json_of_every_log_kind(
    words: tuple[str, ...], tmp_path: Path, database: Path, replay: Replay
) -> None:
    """SQLite path, SQLAlchemy URL, full JSONL and bundle of one run give one and the same answer."""
    bundle = tmp_path / "run.lmrb.gz"
    assert replay("export", database, "-o", bundle).code == 0
    verb, *rest = words
    answers = []
    for log in (NODE_LOSS, database, f"sqlite:///{database}", bundle):
        ran = replay(verb, log, *rest, "--json")
        assert ran.code in (0, 1), ran.err
        text = ran.out.replace(str(log), "LOG")
        answers.append(re.sub(r'"kind": "\w+"', "", text))
        assert replay(verb, log, *rest).out.strip()
    assert len(set(answers)) == 1


def one_line(replay: Replay, *words: object) -> str:
    ran = replay(*words)
    assert ran.code == 2, ran.out + ran.err
    assert ran.out == ""
    assert ran.err.startswith("lmr-replay: ")
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err
    return ran.err.removeprefix("lmr-replay: ").strip()


def test_a_file_that_is_not_there(tmp_path: Path, replay: Replay) -> None:
    assert one_line(replay, "verify", tmp_path / "no.db").endswith("no.db: no such file or directory")


@pytest.mark.parametrize("name", ["", "-"])
def test_a_name_that_is_none(name: str, replay: Replay) -> None:
    for words in (("verify", name), ("import", name, "--into", "x.db")):
        assert one_line(replay, *words).startswith(f"{name!r} names no log: say a SQLAlchemy URL, ")


def test_a_place_is_named_once(tmp_path: Path, replay: Replay) -> None:
    assert one_line(replay, "verify", f"sqlite:///{tmp_path}/no.db") == f"sqlite:///{tmp_path}/no.db: no such file"
    assert one_line(replay, "import", NODE_LOSS, "--into", tmp_path) == f"{tmp_path}: is a folder, not a file"


def test_an_empty_file(tmp_path: Path, replay: Replay) -> None:
    (tmp_path / "empty").touch()
    assert one_line(replay, "verify", tmp_path / "empty").endswith("is empty")


def test_a_folder(tmp_path: Path, replay: Replay) -> None:
    assert one_line(replay, "timeline", tmp_path).endswith("is a folder; name one log")


def test_something_else(tmp_path: Path, replay: Replay) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary")
    assert "neither a SQLite event log, nor JSONL, nor a bundle" in one_line(replay, "verify", path)


def test_a_foreign_database(tmp_path: Path, replay: Replay) -> None:
    """Somebody else's SQLite file is named as such and not touched."""
    path = tmp_path / "photos.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table photos (name text)")
    before = path.read_bytes()
    assert "photos.db" in one_line(replay, "verify", path)
    assert path.read_bytes() == before


def test_a_newer_schema(database: Path, replay: Replay) -> None:
    """A log of a newer version says so."""
    with sqlite3.connect(database) as connection:
        connection.execute("update lmr_schema set version_num = 'r9999'")
    assert "newer" in one_line(replay, "verify", database)


def test_an_unreachable_server(replay: Replay) -> None:
    """A server that does not answer: one line, and the password is not in it."""
    pytest.importorskip("psycopg", reason="needs the postgres extra")
    said = one_line(replay, "verify", "postgresql+psycopg://auditor:secret@127.0.0.1:9/lmr")
    assert "secret" not in said
    assert "127.0.0.1" in said


def test_an_unknown_kind_of_database(replay: Replay) -> None:
    assert "oracle" in one_line(replay, "verify", "oracle://db/lmr")


def test_a_log_still_being_written(tmp_path: Path, replay: Replay) -> None:
    """A JSONL file that ends inside a line names that line."""
    path = tmp_path / "growing.jsonl"
    path.write_bytes(NODE_LOSS.read_bytes()[:-40])
    assert "ends in the middle of line 58" in one_line(replay, "verify", path)


def test_a_line_that_is_not_json(tmp_path: Path, replay: Replay) -> None:
    path = tmp_path / "bad.jsonl"
    lines = NODE_LOSS.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], "{oops}\n", *lines[3:]]))
    assert "line 4" in one_line(replay, "verify", path)


def test_a_fact_without_a_needed_field(tmp_path: Path, replay: Replay) -> None:
    """An ill-formed fact is named with line, type and key."""
    path = tmp_path / "facts.jsonl"
    replay("export", NODE_LOSS, "--format", "facts", "-o", path)
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace('"incarnation"', '"incarnation_"')
    path.write_text("".join(lines))
    assert re.search(r"line 2: event node_joined: incarnation", one_line(replay, "decide", path))


def test_facts_of_unknown_types_are_kept_and_reported(tmp_path: Path, replay: Replay) -> None:
    path = tmp_path / "facts.jsonl"
    replay("export", NODE_LOSS, "--format", "facts", "-o", path)
    song = {"type": "node_sang", "at_ms": 1_795_200_000_500, "source": "node-1", "data": {"song": "la"}}
    with path.open("a") as file:
        file.write(json.dumps(song) + "\n")
    ran = replay("decide", path, "--json", "--into", tmp_path / "run.db")
    assert ran.code == 0
    assert "node_sang" in ran.err
    assert replay("verify", tmp_path / "run.db", "--json").json["unknown_types"] == {"node_sang": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[recovery]\nsettle_mss = 3\n", "unknown key 'recovery.settle_mss'; allowed: blame_window_s, "),
        ("[recovery]\nsettle_ms = 'soon'\n", "key 'recovery.settle_ms' is 'soon'; allowed: a valid integer"),
        ("[recovery\n", "not TOML"),
        ("[recovery]\n[reccovery]\nx = 1\n", "reccovery"),
        ("schema_version = 2\n[recovery]\n", "key 'schema_version' is 2; allowed: 1"),
    ],
)
def test_a_policy_with_a_mistake(text: str, said: str, tmp_path: Path, replay: Replay) -> None:
    """File and key are named."""
    path = tmp_path / "policy.toml"
    path.write_text(text)
    found = one_line(replay, "whatif", NODE_LOSS, "--policy", path)
    assert said in found
    assert "policy.toml" in found


def test_a_policy_says_which_of_its_keys_nobody_looked_at(tmp_path: Path, replay: Replay) -> None:
    """The engine's own table is checked; what belongs to capturing and checking is left to `lmr doctor`."""
    path = tmp_path / "worker.toml"
    path.write_text("schema_version = 1\ninterval = 5\n[checkpoint]\nreplicaz = 1\n[recovery]\nsettle_ms = 300\n")
    said = (
        f"lmr-replay: note: {path}: not checked here: checkpoint, interval; `lmr doctor --worker-config {path}` does\n"
    )
    assert replay("whatif", NODE_LOSS, "--policy", path).err == said
    path.write_text("schema_version = 1\n[recovery]\nsettle_ms = 300\n")
    assert replay("whatif", NODE_LOSS, "--policy", path).err == ""


def test_a_log_among_several_that_cannot_be_read_is_exit_code_2(tmp_path: Path, replay: Replay) -> None:
    """The others are answered all the same."""
    policy = tmp_path / "same.toml"
    policy.write_text("[recovery]\n")
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.jsonl").write_bytes(NODE_LOSS.read_bytes())
    (logs / "b.jsonl").write_text("no log")
    ran = replay("whatif", logs, "--policy", policy)
    assert ran.code == 2
    assert "1 log could not be read" in ran.out
    assert "0 of 2 logs change" in ran.out


def test_a_bisection_that_was_cut_short_claims_nothing(replay: Replay) -> None:
    """With replays for a few facts only, nothing is said about the others."""
    ran = replay("bisect", NODE_LOSS, "last", "--limit", "1")
    assert ran.code == 0
    assert "No set of facts" not in ran.out
    assert "The limit ended the search" in ran.out
    assert "27 facts to try" in ran.out


def test_what_is_no_option_is_answered_with_what_is(replay: Replay) -> None:
    for option in ("step=abc", "foo", ""):
        said = one_line(replay, "explain", NODE_LOSS, "last", "--why-not", option)
        assert f"--why-not {option!r}: allowed: restart, replace, hold, halt, start, step=NUMBER, node-1, " in said


def test_a_log_of_ours_has_no_facts_to_find(tmp_path: Path, replay: Replay) -> None:
    bundle = tmp_path / "run.lmrb.gz"
    replay("export", NODE_LOSS, "-o", bundle)
    for more in ((), ("--into", tmp_path / "copy.db")):
        said = one_line(replay, "import", bundle, "-o", tmp_path / "facts.jsonl", *more)
        assert "-o is for the facts found in artefacts" in said
        assert "export --format facts" in said


def test_a_damaged_bundle(tmp_path: Path, replay: Replay) -> None:
    """A cut and a flipped bundle are refused, plain and compressed."""
    whole = tmp_path / "run.lmrb"
    replay("export", NODE_LOSS, "-o", whole)
    (tmp_path / "cut.lmrb").write_bytes(whole.read_bytes()[:-200])
    (tmp_path / "flipped.lmrb").write_bytes(whole.read_bytes().replace(b"3221225472", b"3221225473", 1))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(whole.read_bytes())[:-30])
    for name in ("cut.lmrb", "flipped.lmrb", "cut.gz"):
        assert name in one_line(replay, "verify", tmp_path / name)


def test_several_runs_need_a_name(tmp_path: Path, replay: Replay) -> None:
    """A database with two runs asks which; `--run` answers."""
    path = tmp_path / "both.db"
    for name in ("node-loss", "desync"):
        assert replay("import", CORPUS / f"{name}.jsonl", "--into", path).code == 0
    assert "desync, node-loss" in one_line(replay, "verify", path)
    assert replay("verify", path, "--run", "desync").code == 0
    assert "no run 'x'" in one_line(replay, "verify", path, "--run", "x")


@pytest.mark.parametrize(
    "words",
    [
        ("explain", NODE_LOSS, "ffffffff"), ("explain", NODE_LOSS, "incident:9"), ("state", NODE_LOSS, "--at", "999"),
        ("timeline", NODE_LOSS, "--incident", "7"), ("timeline", NODE_LOSS, "--node", "node-99"),
        ("timeline", NODE_LOSS, "--since", "yesterday"), ("diff", NODE_LOSS),
        ("diff", NODE_LOSS, "--at", "5", "--at", "2"),
        ("whatif", NODE_LOSS), ("whatif", NODE_LOSS, "--without", "999"), ("bisect", NODE_LOSS, "nope"),
        ("report", NODE_LOSS, "-o", "/nowhere/at/all.html"), ("export", NODE_LOSS, "-o", "/nowhere/at/all.csv"),
        ("export", NODE_LOSS, "--redact", "-o", "x.csv"), ("import", NODE_LOSS),
        ("bisect", NODE_LOSS, "last", "--limit", "0"), ("bisect", NODE_LOSS, "last", "--limit", "-5"),
    ],
    ids=lambda words: " ".join(getattr(word, "name", word) for word in words),
)  # fmt: skip
def test_questions_that_make_no_sense(words: tuple[object, ...], replay: Replay) -> None:
    assert one_line(replay, *words)


def test_importing_twice_changes_nothing_and_another_log_is_refused(tmp_path: Path, replay: Replay) -> None:
    path = tmp_path / "copy.db"
    assert replay("import", NODE_LOSS, "--into", path).code == 0
    assert replay("import", NODE_LOSS, "--into", path).code == 0
    other = tmp_path / "other.jsonl"
    other.write_text("".join(NODE_LOSS.read_text().splitlines(keepends=True)[:30]))
    assert "import under another run" in one_line(replay, "import", other, "--into", path)


@pytest.mark.parametrize("words", ["timeline", "timeline --json", "verify"])
def test_a_reader_that_goes_away_is_told_by_the_exit_code_alone(words: str) -> None:
    """`lmr-replay ... | true` ends quietly, and with neither of the codes that would say something of the log."""
    script = f"{sys.executable} -m lmr.replay_tool.main {words} {NODE_LOSS} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("141\n", "")


@pytest.mark.parametrize("words", ["timeline", "timeline --json"])
def test_a_full_disk_is_one_line(words: str) -> None:
    script = f"{sys.executable} -m lmr.replay_tool.main {words} {NODE_LOSS} > /dev/full"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "lmr-replay: No space left on device\n")


def test_an_output_without_our_characters_gets_question_marks(tmp_path: Path) -> None:
    """The answer and the exit code are what they are elsewhere; JSON escapes what ASCII does not have."""
    policy = tmp_path / "policy.toml"
    policy.write_text("[recovery]\nsettle_ms = 1\n")
    log = tmp_path / "nœud.jsonl"
    log.write_bytes(NODE_LOSS.read_bytes())
    for words, mark in (("timeline", "?"), (f"whatif --policy {policy}", "?"), ("timeline --json", "n\\u0153ud")):
        command = [sys.executable, "-m", "lmr.replay_tool.main", *words.split(), str(log)]
        env = {**os.environ, "COLUMNS": "120"}
        plain = subprocess.run(command, capture_output=True, env={**env, "PYTHONIOENCODING": "ascii"}, timeout=60)
        usual = subprocess.run(command, capture_output=True, env={**env, "PYTHONIOENCODING": "utf-8"}, timeout=60)
        assert plain.stderr == b""
        assert plain.returncode == usual.returncode
        if words.endswith("--json"):
            assert json.loads(plain.stdout) == json.loads(usual.stdout)
        assert mark.encode() in plain.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_every_verb_and_option(shell: str, replay: Replay) -> None:
    """The script is made from the parser, so it knows what the parser knows."""
    text = replay("completion", shell).out
    for verb in PAGES:
        assert verb in text
    assert "anchors" in text


def test_bash_completion_completes() -> None:
    """Sourced by a real bash, the script completes verbs and options."""
    script = (
        "source <(" + sys.executable + " -m lmr.replay_tool.main completion bash);"
        "COMP_WORDS=(lmr-replay ver); COMP_CWORD=1; _lmr_replay; echo ${COMPREPLY[@]};"
        "COMP_WORDS=(lmr-replay verify --an); COMP_CWORD=2; _lmr_replay; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["verify", "--anchors"]
