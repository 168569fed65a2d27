"""Events for tests of the store."""

from lmr.engine.events import CheckpointCaptured, Event, NodeJoined

AT_MS = 1_767_225_600_000


def captured(step: int, node: str = "node-1") -> Event:
    """A capture of `step`."""
    data = CheckpointCaptured(generation=0, step=step, slot=0, node=node, digest="ab" * 32, bytes=1000 + step)
    return Event.of(data, at_ms=AT_MS + step, source=node)


def joined(node: str, address: str = "10.0.0.1:29400") -> Event:
    """A node's admission."""
    data = NodeJoined(node=node, incarnation=f"{node}-life", address=address, failure_domain=None, fingerprint=None)
    return Event.of(data, at_ms=AT_MS, source=node)


def batch(count: int, first: int = 1, node: str = "node-1") -> list[tuple[str, Event]]:
    """`count` captures with ids of `node`'s spool, counted from `first`."""
    return [(f"{node}/life/{number}", captured(number, node)) for number in range(first, first + count)]
