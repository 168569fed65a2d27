"""Each command of docs/replay.md, run against the corpus, prints what the page says.

LMR_UPDATE_DOCS=1 rewrites what the page shows.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import CORPUS, HERE, Replay

PAGE = HERE.parents[1] / "docs" / "replay.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
LONGEST = 40


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page's commands find around them."""
    for path in CORPUS.glob("*.jsonl"):
        shutil.copy(path, tmp_path)
    (tmp_path / "some-logs").mkdir()
    for name in ("lemon-node", "node-loss", "process-crash", "straggler"):
        shutil.copy(CORPUS / f"{name}.jsonl", tmp_path / "some-logs")
    for name in ("dmesg.txt", "torchrun.log"):
        shutil.copy(HERE / "artefacts" / name, tmp_path)
    (tmp_path / "eager.toml").write_text("[recovery]\nrestarts_before_replace = 0\n")
    lines = (CORPUS / "node-loss.jsonl").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_text("".join(lines[:50]), "utf-8")
    head = {key: json.loads(lines[-1])[key] for key in ("seq", "hash")}
    (tmp_path / "restart-context.json").write_text(json.dumps({"run": "node-loss", "head": head}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(command: str, folder: Path, replay: Replay) -> list[str]:
    words = shlex.split(command)
    if words[0] == "cat":
        return (folder / words[1]).read_text().splitlines()
    assert words[0] == "lmr-replay"
    ran = replay(*words[1:])
    assert ran.code in (0, 1), ran.err
    return ran.out.splitlines()


def commands(block: str) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def matches(said: list[str], out: list[str]) -> bool:
    """True when the page's lines are the output's, `...` standing for any lines."""
    if not said:
        return not out
    if said[0] == "...":
        return any(matches(said[1:], out[skip:]) for skip in range(len(out) + 1))
    return bool(out) and said[0] == out[0] and matches(said[1:], out[1:])


def test_the_page_says_what_the_commands_print(folder: Path, replay: Replay) -> None:
    text = PAGE.read_text("utf-8")
    wrong, seen = [], 0
    for block in BLOCK.findall(text):
        written = []
        for command, said in commands(block):
            out = printed(command, folder, replay)
            seen += 1
            if not matches(said, out):
                wrong.append((command, said, out))
            shown = out if len(out) <= LONGEST else [*out[: LONGEST - 8], "...", *out[-6:]]
            written += [f"$ {command}", *(said if said and matches(said, out) else shown)]
        text = text.replace(f"```console\n{block}```", "```console\n" + "\n".join(written) + "\n```", 1)
    if os.environ.get("LMR_UPDATE_DOCS"):
        PAGE.write_text(text, "utf-8")
    assert seen >= 18
    assert not wrong or os.environ.get("LMR_UPDATE_DOCS"), wrong[0]


def test_the_page_names_every_verb() -> None:
    from lmr.replay_tool.manual import PAGES

    text = PAGE.read_text("utf-8")
    assert [verb for verb in PAGES if f"`{verb}`" not in text and f"lmr-replay {verb}" not in text] == []
