"""What older versions of an event said, brought to today's form while a record is opened.

A stored body is never rewritten: its bytes and hash stay what they were, and so does the record's `version`. Only the
event in it is read as today's. Each step is a pure function from the data of one version to that of the next.
"""

from collections.abc import Callable, Mapping
from typing import Any

Table = dict[str, Any]
Upcaster = Callable[[Table], Table]

UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""(stored type, version) -> its data as version + 1 says it. Empty while every type is at its first version."""


def upcast(type_: str, version: int, data: Mapping[str, Any]) -> Table:
    """The data of a `type_` event stored at `version`, as far up as there are steps; unknown types stay as they are."""
    current = dict(data)
    while (step := UPCASTERS.get((type_, version))) is not None:
        current, version = step(current), version + 1
    return current
