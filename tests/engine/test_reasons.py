"""The registry of reasons is closed: code, registry and docs name the same codes, and cases use no other."""

import ast
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from transcript import decisions, read_case

from lmr.engine.reasons import CLOSE_REASONS, PLAN_REASONS, REJECTED_REASONS

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs" / "reasons.md"


def test_docs_list_exactly_the_registry() -> None:
    sections = re.split(r"^## ", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    listed = [set(re.findall(r"^\| `([a-z_]+)` \|", section, flags=re.MULTILINE)) for section in sections]
    assert listed == [set(PLAN_REASONS), set(REJECTED_REASONS), set(CLOSE_REASONS)]


def test_docs_explain_each_code_in_the_registry_s_words() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for code, meaning in {**PLAN_REASONS, **CLOSE_REASONS}.items():
        assert f"| `{code}` | {meaning} |" in text
    for code, meaning in REJECTED_REASONS.items():
        assert f"| `{code}` | {meaning} |" in text


def test_every_decision_of_the_transcripts_uses_registered_codes() -> None:
    used: set[str] = set()
    for path in sorted((ROOT / "tests" / "scenarios").glob("*.case")):
        for _, fields in decisions(read_case(path)):
            if fields["type"] == "run_closed":
                assert fields["reason"] in CLOSE_REASONS
                continue
            assert fields["reason"] in PLAN_REASONS
            used.add(fields["reason"])
            for item in fields["rejected"]:
                assert item["reason"] in REJECTED_REASONS
                used.add(item["reason"])
    never = set(PLAN_REASONS) - used
    assert never == set(), f"no transcript shows {never}"


def test_every_registered_code_is_in_the_code() -> None:
    strings: set[str] = set()
    for path in (ROOT / "engine").glob("*.py"):
        if path.name != "reasons.py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    strings.add(node.value)
    assert set(PLAN_REASONS) | set(REJECTED_REASONS) | set(CLOSE_REASONS) <= strings
