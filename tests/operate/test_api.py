"""docs/api.md names all that is public and nothing else, and its code blocks run.

LMR_UPDATE_DOCS=1 rewrites the tables that are made from the code.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from pathlib import Path

import public_api
import pytest
from public_api import PAGE, ROOT, page_names, page_tables, public_modules, rendered, rewrite, tables

from lmr.integrations.operate.main import main as lmr
from lmr.integrations.torchrun.worker_policy import load_worker_policy
from lmr.replay_tool.main import main as lmr_replay

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
UPDATE = "LMR_UPDATE_DOCS=1 python -m pytest tests/operate/test_api.py rewrites the tables made from the code"


def text() -> str:
    return PAGE.read_text("utf-8")


def python_of(page: Path) -> str:
    return "\n".join(code for kind, code in FENCE.findall(page.read_text("utf-8")) if kind == "python")


def test_the_page_has_a_table_for_everything_public() -> None:
    if os.environ.get("LMR_UPDATE_DOCS"):
        PAGE.write_text(rewrite(text(), tables()), "utf-8")
    missing = sorted(tables().keys() - page_tables(text()).keys())
    extra = sorted(page_tables(text()).keys() - tables().keys())
    assert not missing, (
        f"public, but without a table in docs/api.md: {missing}; write a paragraph, then the lines "
        f"'<!-- table: {missing[0]} -->', the table's head, '<!-- end -->'. {UPDATE}"
    )
    assert not extra, f"docs/api.md has tables for what is not public: {extra}"


@pytest.mark.parametrize("key", sorted(tables()))
def test_the_table_names_all_of_it_and_nothing_else(key: str) -> None:
    body = page_tables(text()).get(key, "")
    table = tables()[key]
    names = page_names(body)
    assert sorted(set(table.names) - set(names)) == [], f"public, but not in docs/api.md under {key!r}. {UPDATE}"
    assert sorted(set(names) - set(table.names)) == [], f"in docs/api.md under {key!r}, but not public. {UPDATE}"
    assert body == rendered(table, body), f"docs/api.md is behind the code under {key!r}. {UPDATE}"
    for row in body.splitlines()[2:]:
        assert not re.search(r"\|\s*\|$", row), f"nothing is said about {row}"


def test_what_the_documents_import_is_public() -> None:
    """So that something new cannot be shown to users without being part of the API."""
    public = public_modules()
    pages = {page: python_of(page) for page in (ROOT / "docs").glob("*.md")}
    pages |= {path: path.read_text("utf-8") for path in (ROOT / "docs" / "examples").rglob("*.py")}
    wrong = []
    for page, code in pages.items():
        for node in ast.walk(ast.parse(code)):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("lmr"):
                continue
            for name in (alias.name for alias in node.names):
                module = node.module or ""
                if name not in public.get(module, ()) and f"{module}.{name}" not in public:
                    wrong.append(f"{page.relative_to(ROOT)}: from {module} import {name}")
    assert not wrong, "not in `__all__` of a public module: " + "; ".join(wrong)


def test_what_is_public_says_what_it_is() -> None:
    silent = [
        f"{key}: {row[0]}"
        for key, table in tables().items()
        for row in table.rows
        if not table.written and row[-1] == ""
    ]
    assert not silent, f"public names without a docstring or description: {silent}"


def test_adapters_call_what_the_page_lists_of_a_session() -> None:
    from lmr.integrations.frameworks.pytorch.session import Session

    listed = {name.split("(")[0] for name in re.findall(r"^\| `session\.([^`]+)` \|", text(), re.MULTILINE)}
    adapters = [ROOT / "integrations" / "frameworks" / f"{name}.py" for name in ("megatron", "torchtitan")]
    used = {
        name
        for path in [*adapters, ROOT / "docs" / "adapters.md"]
        for name in re.findall(r"\bsession\.([a-z_]+)\b", path.read_text("utf-8"))
    }
    assert sorted(used - listed) == [], "adapters call these methods of a session, docs/api.md does not list them"
    assert sorted(name for name in listed if not hasattr(Session, name)) == []
    assert len(listed) >= 8


def test_the_code_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    ran = dict.fromkeys(("python", "toml", "sh"), 0)
    for kind, code in FENCE.findall(text()):
        ran[kind] = ran.get(kind, 0) + 1
        if kind == "python":
            exec(compile(code, str(PAGE), "exec"), names)
        elif kind == "toml" and "schema_version" in code:
            (tmp_path / "policy.toml").write_text(code)
            load_worker_policy(tmp_path / "policy.toml")
        elif kind == "sh":
            for line in code.splitlines():
                words = shlex.split(line, comments=True)
                run = {"lmr": lmr, "lmr-replay": lmr_replay}[words[0]]
                assert run(words[1:]) == 0, line
    assert min(ran.values()) > 0, ran


def test_a_name_that_is_left_out_fails_with_its_name() -> None:
    """The comparison itself: a module gets one more public name, and a table loses a row."""
    table = public_api.Table([["`a`", "", "x"], ["`b`", "", "y"]])
    body = "| name | call | meaning |\n|---|---|---|\n| `a` |  | x |\n"
    assert set(table.names) - set(page_names(body)) == {"`b`"}
    assert rendered(table, body).endswith("| `a` |  | x |\n| `b` |  | y |\n")
