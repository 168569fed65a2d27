"""Doubles of the node runtime."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "doubles"))


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes nodes with a vault each; keyword arguments are `[checkpoint]` keys."""
    from node_double import NodeDouble

    nodes: list[NodeDouble] = []

    def make(name: str | None = None, **checkpoint: Any) -> NodeDouble:
        node = NodeDouble(name or f"node-{len(nodes)}", tmp_path, {"checkpoint": checkpoint})
        nodes.append(node)
        node.adopt()
        return node

    yield make
    for node in nodes:
        node.close()
