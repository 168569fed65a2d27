"""Slurm's compressed host lists: `gpu-[01-03,07],login1`."""

from __future__ import annotations

import re

_PART = re.compile(r"(?:[^,\[\]]+|\[[^\]]*\])+")
_BRACKET = re.compile(r"\[([^\]]*)\]")


def hosts(text: str) -> list[str]:
    """The hosts of a list, in order; leading zeros are kept."""
    return [host for part in _PART.findall(text.strip()) for host in _expand(part)]


def _expand(part: str) -> list[str]:
    match = _BRACKET.search(part)
    if match is None:
        return [part]
    head, tail = part[: match.start()], part[match.end() :]
    found: list[str] = []
    for item in match[1].split(","):
        first, dash, last = item.partition("-")
        numbers = range(int(first), int(last) + 1) if dash else range(int(first), int(first) + 1)
        found += [rest for number in numbers for rest in _expand(f"{head}{number:0{len(first)}d}{tail}")]
    return found
