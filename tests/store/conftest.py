"""A log on each dialect, and events to put into it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lmr.store import EventLog, open_log


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty log may be made: once on each dialect."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/events.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def log(url: str) -> Iterator[EventLog]:
    """An empty log, once on each dialect."""
    with open_log(url) as opened:
        yield opened
