"""The engine is pure: no clock, no random, no I/O, no logging, no torch, no SQL. Shown by what it imports and calls."""

import ast
from pathlib import Path

import pytest

ENGINE = Path(__file__).parent.parent.parent / "engine"
ALLOWED = {
    "ast", "bisect", "collections", "collections.abc", "dataclasses", "enum", "functools", "hashlib", "heapq",
    "itertools", "json", "math", "operator", "pydantic", "pydantic_core", "typing",
}  # fmt: skip
CAMPAIGN_ONLY = {"random"}
"""Campaigns draw failures from an explicit seed; they are outside the core, and the core does not import them."""
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "__import__", "id_of_clock", "breakpoint"}

FILES = sorted(ENGINE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ENGINE)))
def test_imports_only_what_cannot_look_around(path: Path) -> None:
    in_campaign = "campaign" in path.relative_to(ENGINE).parts
    allowed = ALLOWED | (CAMPAIGN_ONLY if in_campaign else set())
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            if module == "lmr.engine" or module.startswith("lmr.engine."):
                assert in_campaign or "campaign" not in module, "the core imports no campaign"
            else:
                assert module in allowed, f"{module} is not for the engine"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ENGINE)))
def test_calls_nothing_that_reads_or_writes(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, node.func.id


def test_the_scorer_knows_no_rule() -> None:
    """The campaign's truth and score must not come from the code they judge."""
    allowed = {"lmr.engine.events", "lmr.engine.plan", "lmr.engine.record", "lmr.engine.campaign.truth"}
    for name in ("scorer.py", "truth.py", "generator.py", "profiles.py"):
        tree = ast.parse((ENGINE / "campaign" / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lmr."):
                imported = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
                assert imported & (allowed | {"lmr.engine.campaign.profiles"}), f"{name} imports {imported}"
