"""What is public, read from the code itself, as the tables of docs/api.md.

Public are: the names in `__all__` of a module that has one, the settings users type (`--rdzv-conf` keys, environment
variables, policy keys), the verbs and options of the commands, and the entry point groups.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).parents[1]
ROOMS = ("engine", "store", "integrations", "replay_tool")
VARIABLE = re.compile(r"LM_RESILIENCY_[A-Z_]+")


@dataclass(frozen=True)
class Table:
    """One table of the page.

    Attributes:
        rows: each row's cells, the first being the name in backquotes.
        written: whether everything but the names is written by hand.
    """

    rows: list[list[str]]
    written: bool = False

    @property
    def names(self) -> list[str]:
        return [row[0] for row in self.rows]


def sources() -> Iterator[Path]:
    """Every module of the package."""
    for room in ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


def public_modules() -> dict[str, list[str]]:
    """Every module that has `__all__`, with the names in it."""
    found = {}
    for path in sources():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
                parts = path.relative_to(ROOT).with_suffix("").parts
                module = ".".join(("lmr", *parts)).removesuffix(".__init__")
                found[module] = [str(name) for name in ast.literal_eval(node.value)]
    return found


@cache
def tables() -> dict[str, Table]:
    """Every table the page must have, by the words of its marker."""
    found: dict[str, Table] = {
        "rdzv-conf": Table([[f"`{key}`"] for key in _conf_keys()], written=True),
        "environment": Table([[f"`{name}`"] for name in sorted(_variables())], written=True),
        "entry points": Table([[f"`{group}`"] for group in sorted(_groups())], written=True),
        "lmr": Table(list(_verbs(_lmr_parser()))),
        "lmr-replay": Table(list(_verbs(_replay_parser()))),
    }
    found |= {f"policy {name}": Table(rows) for name, rows in _policy()}
    for module, names in public_modules().items():
        found[f"module {module}"] = Table([row for name in names for row in _entries(module, name)])
    return found


# -- settings --------------------------------------------------------------------------------------------------------


def _conf_keys() -> tuple[str, ...]:
    from lmr.integrations.torchrun.config import OUR_KEYS

    return OUR_KEYS


def _strings() -> Iterator[str]:
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _variables() -> set[str]:
    return {text for text in _strings() if VARIABLE.fullmatch(text)}


def _groups() -> set[str]:
    """Groups we are found by, and groups we look for others in."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    found = set(re.findall(r'^\[project\.entry-points\."([^"]+)"\]', text, re.MULTILINE))
    for path in sources():
        tree = ast.parse(path.read_text("utf-8"))
        constants = {
            ast.unparse(node.targets[0]): node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("entry_points"):
                for keyword in node.keywords:
                    if keyword.arg == "group":
                        value = keyword.value
                        group = value.value if isinstance(value, ast.Constant) else constants[ast.unparse(value)]
                        found.add(str(group))
    return found


def _policy() -> Iterator[tuple[str, list[list[str]]]]:
    from lmr.integrations.torchrun.worker_policy import WorkerPolicy

    top = []
    for key, field in WorkerPolicy.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield key, list(_keys(field.annotation, f"{key}."))
        else:
            top += [_key(key, field)]
    yield "top", top


def _keys(model: type[BaseModel], prefix: str) -> Iterator[list[str]]:
    for key, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _keys(field.annotation, f"{prefix}{key}.")
        else:
            yield _key(f"{prefix}{key}", field)


def _key(name: str, field: Any) -> list[str]:
    least = next((m.ge for m in field.metadata if hasattr(m, "ge")), None)
    most = next((m.le for m in field.metadata if hasattr(m, "le")), None)
    if least is None and most is None:
        allowed = _type_name(field.annotation)
    else:
        allowed = f"from {least}" if most is None else f"{least} to {most}"
        if "None" in str(field.annotation):
            allowed += " or absent"
    default = field.default if field.default is not PydanticUndefined else "required"
    shown = "absent" if default is None else "[]" if default == () else str(default)
    shown = shown.lower() if isinstance(default, bool) else shown
    return [f"`{name}`", shown, allowed, cell(field.description or "")]


def _type_name(annotation: Any) -> str:
    text = str(annotation)
    if "Literal" in text:
        return ", ".join(str(value) for value in getattr(annotation, "__args__", ()))
    if annotation is bool:
        return "true, false"
    return "list of names" if "tuple" in text else "a name" if "str" in text else "a whole number"


# -- commands --------------------------------------------------------------------------------------------------------


def _lmr_parser() -> argparse.ArgumentParser:
    from lmr.integrations.operate.main import build_parser

    return build_parser()


def _replay_parser() -> argparse.ArgumentParser:
    from lmr.replay_tool.command_line import build_parser

    return build_parser()


def _verbs(parser: argparse.ArgumentParser) -> Iterator[list[str]]:
    for action in parser._actions:
        if isinstance(action, argparse._VersionAction):
            yield [f"`{action.option_strings[0]}`", "", cell(action.help or "")]
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for verb, sub in action.choices.items():
                options = [
                    f"`{max(a.option_strings, key=len) if a.option_strings else a.metavar or a.dest}`"
                    for a in sub._actions
                    if not isinstance(a, argparse._HelpAction) and a.help is not argparse.SUPPRESS
                ]
                yield [f"`{verb}`", " ".join(options), cell(summaries.get(verb, ""))]


# -- names -----------------------------------------------------------------------------------------------------------


def _entries(module: str, name: str) -> Iterator[list[str]]:
    value = getattr(importlib.import_module(module), name)
    says = _says(value) if callable(value) else _said_below(name)
    yield [f"`{name}`", _shape(name, value), cell(says)]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        for method, member in _members(value):
            yield [f"`{name}.{method}`", _shape(method, member), cell(_says(member))]


def _said_below(name: str) -> str:
    """The text below a constant's assignment."""
    for path in sources():
        body = ast.parse(path.read_text("utf-8")).body
        for node, following in pairwise(body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if [ast.unparse(target) for target in targets if target] == [name] and isinstance(following, ast.Expr):
                return str(ast.literal_eval(following.value)).split("\n\n")[0]
    return ""


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    seen = set()
    for owner in cls.__mro__:
        if not owner.__module__.startswith("lmr."):
            continue
        for name, value in vars(owner).items():
            plain = inspect.unwrap(value.__func__) if isinstance(value, classmethod | staticmethod) else value
            shown = inspect.isfunction(plain) or isinstance(value, property | cached_property)
            if name.startswith(("_", "model_")) or name in seen or not shown:
                continue
            seen.add(name)
            yield name, value


def _shape(name: str, value: Any) -> str:
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if not callable(value):
        return "" if isinstance(value, property | cached_property) else "constant"
    if inspect.isclass(value) and issubclass(value, BaseException):
        return "error"
    if inspect.isclass(value) and issubclass(value, BaseModel):
        parameters = list(value.model_fields)
        return f"`{name}({', '.join(parameters)})`" if len(parameters) <= 9 else "model"
    try:
        signature = inspect.signature(value)
    except ValueError:
        return ""
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    shown = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return f"`{name}{shown}`" if len(shown) < 100 and " at 0x" not in shown else f"`{name}(...)`"


def _says(value: Any) -> str:
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    if isinstance(value, cached_property):
        value = value.func
    text = inspect.getdoc(value) if callable(value) or isinstance(value, property) else ""
    first = (text or "").split("\n\n")[0]
    stored = getattr(value, "type", None)
    if inspect.isclass(value) and isinstance(stored, str):
        return f"`{stored}`: {first}"
    return first


def cell(text: str) -> str:
    """Text as it stands in a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


# -- the page --------------------------------------------------------------------------------------------------------

PAGE = ROOT / "docs" / "api.md"
BLOCK = re.compile(r"<!-- table: (?P<key>[^>]+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)
ROW = re.compile(r"\| (`[^`]+`) \|")
HEAD_LINES = 2


def page_tables(text: str) -> dict[str, str]:
    """The body of every marked table of the page."""
    return {match["key"]: match["body"] for match in BLOCK.finditer(text)}


def page_names(body: str) -> list[str]:
    """The first cells of a table's rows."""
    return [match[1] for line in body.splitlines()[HEAD_LINES:] if (match := ROW.match(line))]


def rendered(table: Table, body: str) -> str:
    """The body as it should be: all of it where it is made from the code, else only checked for its names."""
    if table.written:
        return body
    head = "".join(body.splitlines(keepends=True)[:HEAD_LINES])
    return head + "".join(f"| {' | '.join(row)} |\n" for row in table.rows)


def rewrite(text: str, known: dict[str, Table]) -> str:
    """The page with its made tables up to date."""
    replaced: Callable[[re.Match[str]], str] = lambda m: (  # noqa: E731
        f"<!-- table: {m['key']} -->\n{rendered(known[m['key']], m['body'])}<!-- end -->"
        if m["key"] in known
        else m.group()
    )
    return BLOCK.sub(replaced, text)
